#pragma once

/// @file
/// Calls of MPI in the program itself are seen by the flight recorder: mpi_calls.cpp stands in front of those functions of
/// MPI that send, receive or wait, by MPI's profiling interface. A program that defines one of them itself has its own.

namespace rankwise {

/// The calls of MPI that this thread makes up to the end of the scope are not seen: they carry messages that the flight
/// recorder knows already, or those of the watchdog.
class OwnMpiCalls {
 public:
  OwnMpiCalls();
  ~OwnMpiCalls();
  OwnMpiCalls(const OwnMpiCalls&) = delete;
  OwnMpiCalls& operator=(const OwnMpiCalls&) = delete;
};

}  // namespace rankwise
