#include "common/messages/watchdog/mpi_waits.hpp"

#include <array>

namespace rankwise {

bool polls_without_pause(std::string_view library)
{
  return library.find("MPICH") != library.npos || library.find("Intel") != library.npos;
}

bool mpi_polls()
{
  static const bool polls = [] {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    return PMPI_Get_library_version(text.data(), &length) == MPI_SUCCESS && polls_without_pause(text.data());
  }();
  return polls;
}

}  // namespace rankwise
