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
#include <sys/ioctl.h>

#include "common/files/descriptor.hpp"
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

/// terminal_columns() of a descriptor of this process.
std::size_t columns_of(int descriptor)
{
  winsize size{};
  if (isatty(descriptor) == 0) return 0;
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string_view variable(const char* name)
{
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::size_t terminal_columns(int descriptor)
{
  if (!has_launcher()) return columns_of(descriptor);
  const int process = launcher();
  if (process == 0) return 0;
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  const Descriptor file(path, O_WRONLY | O_NOCTTY | O_NONBLOCK);
  return file.good() ? columns_of(file.id()) : 0;
}

bool on_terminal(int descriptor)
{
  return terminal_columns(descriptor) > 0;
}

bool on_drawing_terminal(int descriptor)
{
  const std::string_view term = variable("TERM");
  return !term.empty() && term != "dumb" && term != "unknown" && on_terminal(descriptor);
}

bool wants_colour()
{
  return variable("NO_COLOR").empty() && on_drawing_terminal(STDOUT_FILENO);
}

}  // namespace rankwise
