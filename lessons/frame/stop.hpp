#pragma once

#include <mpi.h>

#include "common/messages/communicator.hpp"

/// @file
/// Requests to stop a run between two steps: SIGTERM, as a scheduler sends it, SIGINT, as Ctrl-C does, and SIGUSR1, which a
/// launcher passes on to all ranks without ending them: `kill -USR1` with the id of mpirun.

namespace rankwise {

/// Notes these signals, and lets all ranks agree on the step after which they stop. The second signal of a kind ends the
/// process at once, as it would without this.
///
/// One in a process. All ranks make and destroy it together.
class StopRequests {
 public:
  /// From now on the signals are noted, but for those that the process ignores.
  StopRequests();
  /// The signals end the process again.
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// A step begins: tells the other ranks, meanwhile, what this one has noted.
  void begin_step();
  /// The step has ended. All ranks make both calls for each step.
  /// @return  the signal after which the run stops here, the same on all ranks; 0 for none.
  int end_step();

 private:
  Communicator world_;
  int noted_ = 0, agreed_ = 0;
  MPI_Request agreeing_ = MPI_REQUEST_NULL;
};

/// "SIGTERM", "SIGINT" or "SIGUSR1".
const char* name_of_signal(int signal);

}  // namespace rankwise
