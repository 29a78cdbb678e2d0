#include "common/program/session.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/output_file.hpp"
#include "common/program/crash_report.hpp"
#include "common/program/launcher.hpp"
#include "common/program/rank_failure.hpp"
#include "common/program/terminal.hpp"
#include "common/program/time_ledger.hpp"
#include "common/program/wait.hpp"

#ifdef __GLIBC__
#include <dlfcn.h>
#include <link.h>
#endif

namespace rankwise {

namespace {

// State of the session for abort_job(), which may be called anywhere in the process.
struct Job {
  MPI_Comm communicator = MPI_COMM_WORLD;
  bool running = false;  // between MPI_Init and MPI_Finalize
  bool ending = false;   // abort_job() has been called
  pid_t process = 0;     // to recognise a forked child
  std::string program;   // its name without folders
  int rank = 0;
  int ranks = 1;
  int rank_on_machine = 0;
  int ranks_on_machine = 1;
  std::vector<int> machine_of{0};  // by rank: the lowest rank on its machine
  int* spoken = nullptr;           // shared by the ranks of this machine: set by the first that fails
};
Job job;

/// True if this is the first rank of its machine that fails. Safe in signal handlers.
bool first_to_fail()
{
  int* const spoken = job.spoken;
  return spoken == nullptr || std::atomic_ref<int>(*spoken).exchange(1) == 0;
}

/// The calling thread's innermost span, as ", while reading the tokens (data/corpus.cpp:12)"; empty if none.
std::string current_span()
{
  std::array<char, 256> text{};
  const std::size_t length = TimeLedger::write_innermost_span(text);
  return length == 0 ? "" : ", while " + std::string(text.data(), length);
}

/// Keeps the code of all libraries in memory until the process ends. MPI_Finalize() unloads MPI's plug-ins; if a
/// thread of theirs has not quite ended, it would continue in unmapped code, and a successful run would
/// occasionally crash at its end.
void keep_libraries()
{
#ifdef __GLIBC__
  std::vector<std::string> names;
  const auto add = [](dl_phdr_info* object, std::size_t, void* to) {
    static_cast<std::vector<std::string>*>(to)->emplace_back(object->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &names);
  for (const std::string& name : names)
    if (!name.empty()) dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
#endif
}

/// Exit handler: a program that exits while the job runs would leave the other ranks waiting.
void end_job_after_exit()
{
  if (!job.running || job.ending || getpid() != job.process) return;
  abort_job(
      {fmt::format("{}: exit() was called before the run had ended{}", job.program, current_span()), exit_failure});
}

}  // namespace

MPI_Comm job_ranks()
{
  return job.communicator;
}

int ranks_on_machine()
{
  return job.ranks_on_machine;
}

int rank_on_machine()
{
  return job.rank_on_machine;
}

const std::vector<int>& machine_of_ranks()
{
  return job.machine_of;
}

Session::Session(int& argc, char**& argv) : exceptions_(std::uncaught_exceptions())
{
  std::set_terminate([] { abort_job(); });
  for (const int failed_write : {SIGPIPE, SIGXFSZ}) std::signal(failed_write, SIG_IGN);  // write() says so
  prepare_waits();
  prepare_single_rank();
  int threads = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads), "starting MPI");
  job.running = true;
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "asking MPI for error codes");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "asking MPI for error codes");
  revoke_on_failure(MPI_COMM_WORLD);
  find_ranks();
  check_launcher(ranks_, mpi_library());
  job.process = getpid();
  job.program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  check(std::atexit(end_job_after_exit) == 0, "cannot register an exit handler");
  report_crashes(fmt::format("rank {} of {}: {}", rank_, ranks_, job.program), first_to_fail);
  check(threads == MPI_THREAD_MULTIPLE, "this MPI library does not support MPI_THREAD_MULTIPLE");
  std::uint64_t number = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  check_mpi(MPI_Bcast(&number, 1, MPI_UINT64_T, 0, job_ranks()), "numbering the job");
  set_job_number(number);
  if (ranks_ == 1) return;
  find_machines();
  if (!can_survive()) share_flag();  // Open MPI cannot free such memory after a death
}

/// Determines this rank and the number of ranks.
void Session::find_ranks()
{
  check_mpi(MPI_Comm_rank(job_ranks(), &rank_), "asking for the rank");
  check_mpi(MPI_Comm_size(job_ranks(), &ranks_), "asking for the number of ranks");
  job.rank = rank_;
  job.ranks = ranks_;
}

std::vector<int> Session::shrink()
{
  MPI_Group before = MPI_GROUP_NULL, alive = MPI_GROUP_NULL, dead = MPI_GROUP_NULL;
  const MPI_Comm all = job.communicator;
  forget_communicator(all);
  check_mpi(MPI_Comm_group(all, &before), "asking for the ranks of the job");
  job.communicator = survivors_of(all);
  check_mpi(MPI_Comm_set_errhandler(job.communicator, MPI_ERRORS_RETURN), "asking MPI for error codes");
  check_mpi(MPI_Comm_group(job.communicator, &alive), "asking for the ranks that are alive");
  check_mpi(MPI_Group_difference(before, alive, &dead), "asking for the ranks that have died");
  int count = 0;
  check_mpi(MPI_Group_size(dead, &count), "counting the ranks that have died");
  std::vector<int> numbers(static_cast<std::size_t>(count)), died(numbers.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  check_mpi(MPI_Group_translate_ranks(dead, count, numbers.data(), before, died.data()),
            "naming ranks that have died");
  for (MPI_Group* group : {&before, &alive, &dead}) check_mpi(MPI_Group_free(group), "freeing a group of ranks");
  revoke_on_failure(job.communicator);
  find_ranks();
  return died;
}

void Session::find_machines()
{
  forget_communicator(machine_);
  check_mpi(MPI_Comm_split_type(job_ranks(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine_),
            "finding the ranks of this machine");
  revoke_on_failure(machine_);
  check_mpi(MPI_Comm_rank(machine_, &job.rank_on_machine), "asking for the rank on this machine");
  check_mpi(MPI_Comm_size(machine_, &job.ranks_on_machine), "asking for the ranks on this machine");
  int lowest = rank_;
  check_mpi(MPI_Bcast(&lowest, 1, MPI_INT, 0, machine_), "naming a machine");
  job.machine_of = gather_all(lowest, job_ranks(), "asking for the machines of all ranks");
}

/// Creates job.spoken: one integer in shared memory for each machine, allocated by its first rank.
void Session::share_flag()
{
  int unit = 0;
  MPI_Aint bytes = job.rank_on_machine == 0 ? sizeof(int) : 0;
  int* own = nullptr;
  check_mpi(MPI_Win_allocate_shared(bytes, sizeof(int), MPI_INFO_NULL, machine_, &own, &spoken_),
            "allocating shared memory");
  check_mpi(MPI_Win_set_errhandler(spoken_, MPI_ERRORS_RETURN), "asking MPI for error codes");
  int* flag = nullptr;
  check_mpi(MPI_Win_shared_query(spoken_, 0, &bytes, &unit, &flag), "finding shared memory");
  if (job.rank_on_machine == 0) std::atomic_ref<int>(*flag).store(0);
  check_mpi(MPI_Barrier(machine_), "starting together");
  job.spoken = flag;
}

Session::~Session()
{
  if (rehearsed_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    job.spoken = nullptr;
    // Memory and communicators that this rank shared with dead ranks are not freed.
    const bool complete = job.communicator == MPI_COMM_WORLD;
    if (complete && spoken_ != MPI_WIN_NULL) check_mpi(MPI_Win_free(&spoken_), "freeing shared memory");
    if (complete && machine_ != MPI_COMM_NULL) check_mpi(MPI_Comm_free(&machine_), "freeing a communicator");
    keep_libraries();
    if (complete) check_mpi(MPI_Finalize(), "ending MPI");  // it may wait for the dead
    job.running = false;
  } catch (...) {
    abort_job();
  }
}

void check_mpi(int code, std::string_view doing, SourceLocation where)
{
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  const std::string message = fmt::format(
      "MPI failed at {}: {}", doing,
      length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : fmt::format("error code {}", code));
  if (!is_rank_failure(code)) throw Error(message, where);
  revoke_all();
  throw RankFailure(message, false, where);
}

std::string host_name()
{
  std::array<char, MPI_MAX_PROCESSOR_NAME> text{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(text.data(), &length), "asking for the name of this host");
  return {text.data(), static_cast<std::size_t>(length)};
}

std::string mpi_library()
{
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "asking for the version of MPI");
  return {text.data(), static_cast<std::size_t>(length)};
}

Failure describe(std::exception_ptr exception)
{
  const std::string doing = innermost_failed_span();
  const std::string span = doing.empty() ? "" : fmt::format(", while {}", doing);
  if (exception == nullptr)
    return {"the program was terminated without an exception" + current_span(), exit_failure};
  try {
    std::rethrow_exception(exception);
  } catch (const UserError& e) {
    return {e.what(), exit_user_error};
  } catch (const Error& e) {
    return {fmt::format("{}: {}{}", text_of(e.where()), e.what(), span), exit_failure};
  } catch (const std::exception& e) {
    return {fmt::format("{}{}", e.what(), span), exit_failure};
  } catch (...) {
    return {"an exception that is not a std::exception" + span, exit_failure};
  }
}

void abort_job()
{
  abort_job(describe(std::current_exception()));
}

void abort_job(const Failure& failure)
{
  job.ending = true;
  // Ranks that can survive others all meet a UserError: rank 0 reports it, and one call of MPI_Abort() ends Open
  // MPI's job.
  const bool noticed_by_all = failure.status == exit_user_error && can_survive() && job.rank != 0;
  if (noticed_by_all || !first_to_fail()) {
    // The first rank ends the job within a moment. If it dies before that, this rank does.
    std::this_thread::sleep_for(std::chrono::seconds(5));
  } else {
    std::string text = failure.message + "\n";
    if (failure.status == exit_user_error)
      text += job.ranks == 1 ? "" : fmt::format("       (said by rank {} of {})\n", job.rank, job.ranks);
    else if (failure.status != exit_watchdog)
      text = fmt::format("rank {} of {}: {}", job.rank, job.ranks, text);
    std::fflush(stdout);
    draw_text(stderr, (drawn_below_cursor ? std::string(clear_picture) : "") + printable(text));
    // MPICH's launcher drops output that it has not read yet when a job ends.
    if (job.ranks > 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // A job of one rank has no other ranks to end.
  if (job.running && job.ranks > 1) MPI_Abort(MPI_COMM_WORLD, failure.status);
  std::_Exit(failure.status);
}

}  // namespace rankwise
