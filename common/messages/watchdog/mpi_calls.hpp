#pragma once

/// @file
/// Records the program's own MPI calls in the flight recorder: mpi_calls.cpp wraps the MPI functions that send,
/// receive or wait, using MPI's profiling interface (PMPI). The program's own definition of such a function takes
/// precedence.

namespace rankwise {

/// Hides this thread's MPI calls from the flight recorder until the end of the scope: their messages are recorded
/// elsewhere, or belong to the watchdog.
class OwnMpiCalls {
 public:
  OwnMpiCalls();
  ~OwnMpiCalls();
  OwnMpiCalls(const OwnMpiCalls&) = delete;
  OwnMpiCalls& operator=(const OwnMpiCalls&) = delete;
};

}  // namespace rankwise
