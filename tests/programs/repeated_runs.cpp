// A library for LD_PRELOAD that makes a program run again and again in one process, so that a run does not have to start processes
// and MPI. tests/lessons/repeated_runs.py starts such programs and asks for runs.
//
// The process connects to the socket RANKWISE_RUNS. Each message that comes is the size of a command (uint32) and the command: a file
// for the output, one for the errors, and the words of the command line, each ended by a zero byte. The answer is the status that
// main() returned (int32). When the other side closes the socket, MPI is finalised.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>

namespace {

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

void require(bool holds, const char* what)
{
  if (holds) return;
  std::perror(what);
  std::_Exit(1);
}

int connect_to(const char* path)
{
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
  require(connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, path);
  return connection;
}

/// False if the other side has closed the socket.
bool receive(int connection, void* to, std::size_t size)
{
  return size == 0 || recv(connection, to, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

/// The words of a command; each is followed by a zero byte.
std::vector<char*> words_of(std::string& command)
{
  std::vector<char*> words;
  for (std::size_t at = 0; at < command.size(); at = command.find('\0', at) + 1) words.push_back(&command[at]);
  return words;
}

/// Lets a descriptor write at the end of a file.
void write_to(int descriptor, const char* path)
{
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  require(file >= 0 && dup2(file, descriptor) >= 0, path);
  close(file);
}

int run_until_closed(int, char**, char** environment)
{
  unsetenv("LD_PRELOAD");  // not for processes that the program starts
  const int connection = connect_to(std::getenv("RANKWISE_RUNS"));
  std::uint32_t size = 0;
  while (receive(connection, &size, sizeof(size))) {
    std::string command(size, '\0');
    if (!receive(connection, command.data(), size)) break;
    std::vector<char*> words = words_of(command);
    write_to(STDOUT_FILENO, words[0]);
    write_to(STDERR_FILENO, words[1]);
    words.push_back(nullptr);
    const std::int32_t status = program_main(static_cast<int>(words.size()) - 3, words.data() + 2, environment);
    std::fflush(nullptr);
    require(send(connection, &status, sizeof(status), MSG_NOSIGNAL) == sizeof(status), "answering");
  }
  int initialised = 0;
  MPI_Initialized(&initialised);
  return initialised ? PMPI_Finalize() : 0;
}

}  // namespace

extern "C" {

/// Starts run_until_closed() instead of main().
int __libc_start_main(Main main, int count, char** words, void (*before)(), void (*after)(), void (*end)(),
                      void* stack)
{
  program_main = main;
  const auto start = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(run_until_closed, count, words, before, after, end, stack);
}

/// MPI is initialised in the first run, and finalised when the process ends.
int MPI_Init_thread(int* count, char*** words, int required, int* provided)
{
  static int given = -1;
  if (given < 0) {
    if (const int status = PMPI_Init_thread(count, words, required, &given)) return status;
  }
  *provided = given;
  return MPI_SUCCESS;
}

int MPI_Finalize()
{
  return MPI_SUCCESS;
}
}
