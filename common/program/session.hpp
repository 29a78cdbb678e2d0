#pragma once

#include <exception>
#include <mpi.h>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/source_location.hpp"

/// @file
/// The ranks of one job: start and end of MPI, checked MPI calls, and how a failing rank ends the whole job.

namespace rankwise {

/// Rank r of N, as the argument of a formula. It need not be a rank of this job.
struct RankOf {
  int rank = 0;   ///< r, 0 <= r < N
  int ranks = 1;  ///< N
};

/// MPI's lifetime in this process: MPI is initialised by the constructor and finalised by the destructor.
///
/// A program has one session, in its main function. Without a launcher the job has one rank. MPI errors are
/// returned as codes (for check_mpi) instead of ending the process. An uncaught exception in any thread, and a call
/// of exit(), end the whole job like abort_job(). A signal that kills the process is reported with its rank
/// (report_crashes()).
class Session {
 public:
  /// Initialises MPI with MPI_THREAD_MULTIPLE; all ranks of the job construct their session.
  /// @param argc, argv  the arguments of main; those for MPI are removed.
  /// @failure  Error when MPI cannot start, or does not support threads. UserError when another MPI library's
  ///           launcher started this process (check_launcher()).
  Session(int& argc, char**& argv);
  /// The part of a rank that is rehearsed, inside the session of a program: starts and ends nothing.
  explicit Session(RankOf rehearsed) : rank_(rehearsed.rank), ranks_(rehearsed.ranks), rehearsed_(true) {}

  /// Finalises MPI, together with all other ranks; not during stack unwinding, because the other ranks would then
  /// wait forever. The launcher ends the job in that case, because this rank exited without finalising MPI.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Continues without the ranks that have died: the others, in their order, are the ranks of the job from now on. They make
  /// this call together, after all that used a communicator is gone, and then find_machines().
  /// @return  the ranks that have died since the last call, as they were numbered before.
  std::vector<int> shrink();
  /// Determines which ranks share a machine. All ranks make this call.
  void find_machines();

  /// This rank, 0 <= rank < ranks.
  int rank() const { return rank_; }
  /// N, the number of ranks of the job that are alive.
  int ranks() const { return ranks_; }
  /// Rank and number of ranks, for a formula.
  operator RankOf() const { return {rank_, ranks_}; }

 private:
  void find_ranks();
  void share_flag();

  int rank_ = 0;
  int ranks_ = 1;
  bool rehearsed_ = false;
  int exceptions_ = 0;                // in flight at construction
  MPI_Comm machine_ = MPI_COMM_NULL;  // the ranks that share this machine's memory
  MPI_Win spoken_ = MPI_WIN_NULL;     // flag that they share: set once a failing rank has reported
};

/// The ranks of the job: MPI_COMM_WORLD until one of them has died.
MPI_Comm job_ranks();

/// Number of ranks of the job on this machine; 1 without a session.
int ranks_on_machine();

/// Number of this rank among the ranks on this machine, from 0; 0 without a session.
int rank_on_machine();

/// Machine of each rank of the job, identified by the lowest rank on it; without a session one rank on machine 0.
const std::vector<int>& machine_of_ranks();

/// Throws Error with MPI's error text unless @p code is MPI_SUCCESS, or RankFailure if a rank has died, after it has revoked
/// all communicators (rank_failure.hpp). Every MPI call is checked with it:
/// `check_mpi(MPI_Barrier(job_ranks()), "waiting for all ranks")`.
void check_mpi(int code, std::string_view doing, SourceLocation where = SourceLocation::current());

/// Gathers a value from each rank of @p communicator on all of them, which make this call together.
/// @param own  this rank's; a number, or a structure of numbers and arrays.
/// @return     the values, by rank.
template <class T>
std::vector<T> gather_all(const T& own, MPI_Comm communicator, std::string_view doing,
                          SourceLocation where = SourceLocation::current())
{
  int ranks = 0;
  check_mpi(MPI_Comm_size(communicator, &ranks), doing, where);
  std::vector<T> all(static_cast<std::size_t>(ranks));
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, communicator), doing,
            where);
  return all;
}

/// MPI's name of this machine.
std::string host_name();
/// Name and version of the MPI library, as "Open MPI v4.1.4, package: ...".
std::string mpi_library();

/// Message about an exception, and the exit status of the job.
struct Failure {
  std::string message;  ///< "file:line: what, while doing it"; a UserError's own text as it is
  int status;           ///< exit_user_error for UserError, exit_watchdog from the watchdog, else exit_failure
};

/// Describes @p exception, with the innermost span that it left (time_ledger.hpp).
Failure describe(std::exception_ptr exception);

/// Ends the whole job at once with @p failure's status, whatever the other ranks are doing; MPI is not finalised.
///
/// The first rank of a machine that fails prints "rank 2 of 4: file:line: ..." on standard error (a message of the
/// watchdog without that prefix); ranks that fail after it print nothing. Without MPI only this process ends.
[[noreturn]] void abort_job(const Failure& failure);
/// Ends it with the exception that is being handled.
[[noreturn]] void abort_job();

}  // namespace rankwise
