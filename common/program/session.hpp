#pragma once

#include <exception>
#include <mpi.h>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/source_location.hpp"

/// @file
/// The ranks of one job: how they start, how a call to MPI is checked, and how a failing rank ends them all.

namespace rankwise {

/// Rank r of N: whom a formula is about. It need not be a rank that runs.
struct RankOf {
  int rank = 0;   ///< r, 0 <= r < N
  int ranks = 1;  ///< N
};

/// The time during which this process is one rank of a job: MPI runs from construction to destruction.
///
/// A program has one, in its main function. Without a launcher the job has one rank. Errors of MPI come back as codes
/// (for check_mpi) instead of ending the process. An exception that nobody catches, in any thread, and a call of exit()
/// end the whole job like abort_job(). A signal that ends the process is told with its rank (report_crashes()).
class Session {
 public:
  /// Starts MPI for several threads (MPI_THREAD_MULTIPLE); all ranks of the job construct their session.
  /// @param argc, argv  the arguments of main; what belongs to MPI is taken out.
  /// @failure  Error when MPI cannot start, or is built without threads. UserError when another MPI library's launcher
  ///           started this process (check_launcher()).
  Session(int& argc, char**& argv);

  /// Ends MPI, together with all other ranks. When an exception is on its way out it does not: the others would wait
  /// for this rank for ever. The launcher then ends the job, because this rank left without saying goodbye.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// This rank, 0 <= rank < ranks.
  int rank() const { return rank_; }
  /// N, the number of ranks of the job.
  int ranks() const { return ranks_; }
  /// Both, for a formula.
  operator RankOf() const { return {rank_, ranks_}; }

 private:
  void find_machines();
  void share_flag();

  int rank_ = 0;
  int ranks_ = 1;
  int exceptions_ = 0;                // that were on their way when the session began
  MPI_Comm machine_ = MPI_COMM_NULL;  // the ranks that share this machine's memory
  MPI_Win spoken_ = MPI_WIN_NULL;     // one flag that they share: whether a failing rank has spoken
};

/// How many ranks of the job run on this machine; 1 without a session.
int ranks_on_machine();

/// Which of them this one is, from 0; 0 without a session.
int rank_on_machine();

/// By rank of the job, the machine on which it runs, known by its lowest rank; one rank on machine 0 without a session.
const std::vector<int>& machine_of_ranks();

/// Throws Error with MPI's own text unless @p code is MPI_SUCCESS. Every call to MPI goes through it:
/// `check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for all ranks")`.
void check_mpi(int code, std::string_view doing, SourceLocation where = SourceLocation::current());

/// What there is to say about an exception, and with which status the job ends.
struct Failure {
  std::string message;  ///< "file:line: what, while doing it"; a UserError's own text as it is
  int status;           ///< exit_user_error for UserError, exit_watchdog from the watchdog, else exit_failure
};

/// Describes the exception that is being handled or carried, with the innermost span that it left (time_ledger.hpp).
Failure describe(std::exception_ptr exception);

/// Ends the whole job now, with @p failure's status, whatever the other ranks are doing; MPI is not finalized.
///
/// "rank 2 of 4: file:line: ..." (what the watchdog says, as it is) is printed on standard error by the first rank of a machine that fails; ranks that
/// fail in its wake are silent. Without MPI only this process ends.
[[noreturn]] void abort_job(const Failure& failure);

}  // namespace rankwise
