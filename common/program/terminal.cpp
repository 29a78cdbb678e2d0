#include "common/program/terminal.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "common/program/launcher.hpp"

namespace rankwise {

namespace {

/// Programs that start ranks, by their names in /proc.
constexpr std::array<std::string_view, 7> launchers = {"mpirun",        "mpiexec",      "orterun",      "prterun",
                                                       "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"};

/// The process that started another; 0 if that is not known.
int parent_of(int process)
{
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // a name may have blanks
  return name_end == std::string::npos ? 0 : std::atoi(line.c_str() + std::min(name_end + 4, line.size()));
}

std::string name_of(int process)
{
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return name;
}

/// The nearest launcher among the processes that started this one; 0 if there is none.
int launcher()
{
  int process = getppid();
  while (process > 1 && std::find(launchers.begin(), launchers.end(), name_of(process)) == launchers.end())
    process = parent_of(process);
  return process > 1 ? process : 0;
}

bool is_terminal(const std::string& path)
{
  const int file = open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  const bool is = file >= 0 && isatty(file) != 0;
  if (file >= 0) close(file);
  return is;
}

}  // namespace

bool on_terminal(int descriptor)
{
  if (!has_launcher()) return isatty(descriptor) != 0;
  const int process = launcher();
  return process != 0 && is_terminal(fmt::format("/proc/{}/fd/{}", process, descriptor));
}

bool wants_colour()
{
  const char* const none = std::getenv("NO_COLOR");
  return (none == nullptr || *none == '\0') && on_terminal(STDOUT_FILENO);
}

}  // namespace rankwise
