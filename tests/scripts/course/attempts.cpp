// What the tests of the sandbox try in it: one attempt per name. Prints "done" where an attempt was allowed,
// and "refused" with the reason where it was not.
//
//   attempts NAME [ARGUMENT]

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <map>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <arpa/inet.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

namespace {

/// Prints the outcome of a system call.
int report(long result)
{
  std::printf(result >= 0 ? "done\n" : "refused: %s\n", std::strerror(errno));
  return 0;
}

int fork_bomb(const std::string&)
{
  bool refused = false;
  for (int i = 0; i < 1000 && !refused; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    refused = child < 0;
    if (refused) std::printf("refused after %d\n", i);
  }
  return refused ? 1 : 0;
}

/// More processes that compute than there are processors.
int spin_together(const std::string&)
{
  for (int i = 0; i < 40; ++i)
    if (fork() == 0)
      for (volatile long j = 0;; ++j) {
      }
  for (;;) pause();
}

/// The same load of processes that end at once and are never waited for.
int short_lives(const std::string&)
{
  std::signal(SIGCHLD, SIG_IGN);
  for (int i = 0; i < 5; ++i) static_cast<void>(fork());
  for (;;)
    if (fork() == 0) {
      for (volatile long j = 0; j < 1000000; ++j) {
      }
      _exit(0);
    } else {
      wait(nullptr);  // until there is none; no process is charged for their time
    }
}

/// Processes that wait for a child in a way that counts as load.
int sleep_of_parents(const std::string&)
{
  for (int i = 0; i < 10; ++i)
    if (fork() == 0 && vfork() == 0) pause();
  for (;;) pause();
}

/// Folders in one another, deeper than a program may have files open.
int nest(const std::string& folder)
{
  int made = chdir(folder.c_str());
  for (int i = 0; i < 1500; ++i) made += mkdir("d", 0755) + chdir("d");
  for (;;) pause();
  return made;
}

/// Several processes that stay below the limit one by one.
int eat_together(const std::string& each)
{
  const std::size_t bytes = std::stoul(each);
  for (int i = 0; i < 4; ++i) {
    if (fork() == 0) {
      std::memset(std::malloc(bytes), 1, bytes);
      pause();
    }
  }
  pause();
  return 0;
}

int eat_memory(const std::string&)
{
  std::vector<char*> blocks;
  for (;;) {
    blocks.push_back(new char[1 << 20]);
    std::memset(blocks.back(), 1, 1 << 20);
  }
}

/// Fills a folder with files, and prints how many bytes it took.
int fill(const std::string& folder)
{
  const std::vector<char> block(1 << 20, 'x');
  long written = 0;
  for (int file = 0; file < 1000; ++file) {
    const int out = open((folder + "/fill" + std::to_string(file)).c_str(), O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 8; ++i) {
      const ssize_t bytes = write(out, block.data(), block.size());
      if (bytes <= 0) {
        std::printf("%ld\n", written);
        return 0;
      }
      written += bytes;
    }
    close(out);
  }
  std::printf("%ld\n", written);
  return 0;
}

int large_file(const std::string& path)
{
  const std::vector<char> block(1 << 20, 'x');
  const int out = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  while (write(out, block.data(), block.size()) > 0) {
  }
  return 0;
}

int flood(const std::string&)
{
  for (;;) std::puts("all tests passed");
}

int spin(const std::string&)
{
  for (volatile long i = 0;; i = i + 1) {
  }
}

int ignore_signals(const std::string&)
{
  for (int number = 1; number < 32; ++number) std::signal(number, SIG_IGN);
  for (;;) pause();
}

/// Leaves a process behind that has a session, a process group and a parent of its own.
int daemon_process(const std::string&)
{
  if (fork() != 0) return 0;
  setsid();
  if (fork() != 0) _exit(0);
  for (int descriptor = 0; descriptor < 64; ++descriptor) close(descriptor);
  for (;;) pause();
}

int kill_all(const std::string&)
{
  kill(-1, SIGKILL);
  kill(getppid(), SIGKILL);
  kill(1, SIGKILL);
  std::puts("still here");
  return 0;
}

int connect_to(const std::string& address)
{
  const int out = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(53);
  inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  return report(connect(out, reinterpret_cast<sockaddr*>(&to), sizeof to));
}

/// Connects to a socket of its own on the loopback interface.
int loopback(const std::string&)
{
  const int in = socket(AF_INET, SOCK_STREAM, 0);
  const int out = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  socklen_t size = sizeof at;
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(in, reinterpret_cast<sockaddr*>(&at), size) < 0 || listen(in, 1) < 0) return report(-1);
  getsockname(in, reinterpret_cast<sockaddr*>(&at), &size);
  return report(connect(out, reinterpret_cast<sockaddr*>(&at), size));
}

/// Sends back in capitals what comes through an inherited socket, until it is closed.
int capitals(const std::string& descriptor)
{
  const int channel = std::stoi(descriptor);
  char letter;
  while (read(channel, &letter, 1) == 1) {
    letter = static_cast<char>(std::toupper(letter));
    if (write(channel, &letter, 1) != 1) return 1;
  }
  return 0;
}

int open_files(const std::string&)
{
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) std::printf("%d ", descriptor);
  }
  return 0;
}

int read_file(const std::string& path)
{
  char text[64];
  const int in = open(path.c_str(), O_RDONLY);
  return report(in < 0 ? -1 : read(in, text, sizeof text));
}

int write_file(const std::string& path)
{
  const int out = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  return report(out < 0 ? -1 : write(out, "forged", 6));
}

int user(const std::string&)
{
  std::printf("%u %d\n", geteuid(), setuid(0));
  return 0;
}

int push_into_terminal(const std::string&)
{
  return report(ioctl(0, TIOCSTI, "x"));
}

const std::map<std::string, std::function<int(const std::string&)>> attempts = {
    {"call", [](const std::string& number) { return report(syscall(std::stol(number), 0, 0, 0, 0, 0)); }},
    {"capitals", capitals},
    {"connect", connect_to},
    {"daemon", daemon_process},
    {"eat_memory", eat_memory},
    {"eat_together", eat_together},
    {"exit", [](const std::string& status) { return std::stoi(status); }},
    {"fcntl", [](const std::string& command) { return report(fcntl(0, std::stoi(command), 0)); }},
    {"fill", fill},
    {"flood", flood},
    {"fork_bomb", fork_bomb},
    {"ignore_signals", ignore_signals},
    {"kill_all", kill_all},
    {"large_file", large_file},
    {"loopback", loopback},
    {"nest", nest},
    {"new_user_namespace", [](const std::string&) { return report(unshare(CLONE_NEWUSER)); }},
    {"open_files", open_files},
    {"ptrace",
     [](const std::string& pid) { return report(ptrace(PTRACE_ATTACH, std::stoi(pid), nullptr, nullptr)); }},
    {"push_into_terminal", push_into_terminal},
    {"read", read_file},
    {"signal", [](const std::string& number) { return std::raise(std::stoi(number)); }},
    {"short_lives", short_lives},
    {"sleep_of_parents", sleep_of_parents},
    {"spin", spin},
    {"spin_together", spin_together},
    {"user", user},
    {"write", write_file},
};

}  // namespace

int main(int argc, char** argv)
{
  if (argc < 2) return 2;
  const std::string argument = argc > 2 ? argv[2] : "";
  return attempts.at(argv[1])(argument);
}
