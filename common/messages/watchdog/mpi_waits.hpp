#pragma once

#include <mpi.h>
#include <string_view>

#include "common/program/wait.hpp"

/// @file
/// Waits inside MPI that leave the core to others, whatever the library (used by mpi_calls.cpp).

namespace rankwise {

/// True if a library's waits poll without a pause, as those of MPICH and its derivatives do. With two ranks on one
/// core, a step then takes eight times as long. The waits of Open MPI pause (wait.hpp).
/// @param library  result of MPI_Get_library_version().
bool polls_without_pause(std::string_view library);
/// polls_without_pause() of the library that this program runs with.
bool mpi_polls();

/// Asks until the answer is yes, with pauses.
/// @param test  stores whether it is done, and returns MPI's error code.
/// @return  MPI's error code.
template <class Test>
int ask_with_pauses(const Test& test)
{
  int done = 0, code = test(&done);
  for (Wait wait; code == MPI_SUCCESS && done == 0; code = test(&done)) wait.pause();
  return code;
}

/// Waits by the blocking call, or where that would poll, by asking.
/// @param test  as for ask_with_pauses().
/// @return  MPI's error code.
template <class Blocking, class Test>
int wait_with_pauses(const Blocking& blocking, const Test& test)
{
  return mpi_polls() ? ask_with_pauses(test) : blocking();
}

/// Performs a blocking call, or where that would poll, starts its non-blocking form and waits for it.
/// @param blocking  the call.
/// @param start     its non-blocking form, which stores a request.
/// @param status    receives the request's status.
/// @return  MPI's error code.
template <class Blocking, class Start>
int call_with_pauses(const Blocking& blocking, const Start& start, MPI_Status* status = MPI_STATUS_IGNORE)
{
  if (!mpi_polls()) return blocking();
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = start(&request);
  if (code != MPI_SUCCESS) return code;
  return ask_with_pauses([&](int* done) { return PMPI_Test(&request, done, status); });
}

}  // namespace rankwise
