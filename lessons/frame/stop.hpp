#pragma once

#include <mpi.h>
#include <string>

#include "common/messages/communicator.hpp"

/// @file
/// Requests to stop a run between two steps: SIGTERM from a scheduler, SIGINT and SIGQUIT from the keyboard, SIGHUP from a terminal
/// that is closed, SIGXCPU and SIGALRM when a time is used up, and SIGUSR1 and SIGUSR2, which a launcher forwards to all ranks without
/// ending them: `kill -USR1` with the process id of mpirun. Every other signal that would end the process asks to stop too, except
/// those that report a fault or a failed write.

namespace rankwise {

/// Records these signals, and lets all ranks agree on the step after which they stop. A second signal of the same
/// kind has its default effect and ends the process at once, but for SIGXCPU, which is sent each second.
///
/// At most one per process. All ranks construct and destroy it together.
class StopRequests {
 public:
  /// Begins to record the signals, except those that the process ignores or handles.
  StopRequests();
  /// Restores the default handlers.
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Call at the beginning of a step: starts sending the recorded signal to the other ranks.
  void begin_step();
  /// Call at the end of the step. All ranks make both calls for each step.
  /// @return  the signal for which the run stops now, the same on all ranks; 0 for none.
  int end_step();

 private:
  Communicator world_;
  int noted_ = 0, agreed_ = 0;
  MPI_Request agreeing_ = MPI_REQUEST_NULL;
};

/// A signal that a rank has noted, the same on all ranks that are alive; 0 for none. In a job that may lose ranks an
/// all-reduce that has been started cannot be ended after a death: MPI's agreement takes its place.
/// @param noted  by this rank; 0 for none. Of a real-time signal the others learn that it was one: the first.
int agreed_signal(int noted);

/// The signal that this rank has noted; 0 for none.
int noted_request();

/// The name of one of these signals.
std::string name_of_signal(int signal);

}  // namespace rankwise
