#pragma once

#include <mpi.h>

#include "common/program/wait.hpp"

/// @file
/// Waits inside MPI that do not take the core from others, whatever the library: for mpi_calls.cpp.

namespace rankwise {

/// Whether MPI's own waits poll without a pause, as those of MPICH and its derivatives do: a step takes ten times as long where
/// two ranks share a core. Those of Open MPI pause (wait.hpp).
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

/// Performs a blocking call, by its non-blocking form where MPI would poll.
/// @param blocking  the call.
/// @param start     its non-blocking form, which stores a request.
/// @param status    where to store the request's status.
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
