#include "common/messages/communicator.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "common/base/error.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/program/rank_failure.hpp"

namespace rankwise {

Communicator::Communicator(MPI_Comm handle) : handle_(handle), exceptions_(std::uncaught_exceptions())
{
  check_mpi(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN), "asking MPI for error codes");
  revoke_on_failure(handle_);
  check_mpi(MPI_Comm_rank(handle_, &rank_), "asking for the rank in a group");
  check_mpi(MPI_Comm_size(handle_, &ranks_), "asking for the size of a group");
}

Communicator::Communicator(std::vector<int> rehearsed, int rank)
    : rank_(rank), ranks_(static_cast<int>(rehearsed.size())), rehearsed_(std::move(rehearsed))
{
}

Communicator::~Communicator()
{
  if (handle_ == MPI_COMM_NULL) return;
  forget_communicator(handle_);
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    check_mpi(MPI_Comm_free(&handle_), "freeing a communicator");
  } catch (...) {
    abort_job();
  }
}

Communicator::Communicator(Communicator&& other) noexcept
    : handle_(std::exchange(other.handle_, MPI_COMM_NULL)),
      rank_(std::exchange(other.rank_, 0)),
      ranks_(std::exchange(other.ranks_, 0)),
      exceptions_(other.exceptions_),
      rehearsed_(std::move(other.rehearsed_))
{
}

Communicator& Communicator::operator=(Communicator&& other) noexcept
{
  Communicator taken(std::move(other));
  std::swap(handle_, taken.handle_);
  std::swap(rank_, taken.rank_);
  std::swap(ranks_, taken.ranks_);
  std::swap(exceptions_, taken.exceptions_);
  std::swap(rehearsed_, taken.rehearsed_);
  return *this;
}

Communicator Communicator::world()
{
  if (const Rehearsal* rehearsal = Rehearsal::current()) {
    std::vector<int> all(static_cast<std::size_t>(rehearsal->rank.ranks));
    std::iota(all.begin(), all.end(), 0);
    return {std::move(all), rehearsal->rank.rank};
  }
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(job_ranks(), &copy), "making a communicator of all ranks");
  return Communicator(copy);
}

Communicator Communicator::split(int color, int key) const
{
  check(rehearsed_.empty(), "a split of ranks that depends on what each of them passes cannot be rehearsed");
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(handle_, color, key, &part), "splitting a communicator");
  return Communicator(part);
}

Communicator Communicator::among(const std::vector<int>& ranks) const
{
  const auto own = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
  check(own < static_cast<int>(ranks.size()), "a rank made a communicator without itself");
  if (rehearsed_.empty()) return split(ranks.front(), own);
  std::vector<int> in_job;
  for (const int rank : ranks) in_job.push_back(rehearsed_[static_cast<std::size_t>(rank)]);
  return {std::move(in_job), own};
}

Communicator Communicator::duplicate() const
{
  return rehearsed_.empty() ? split(0, rank_) : Communicator(rehearsed_, rank_);
}

Communicator Communicator::split_by_machine() const
{
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part),
            "finding the ranks of this machine");
  return Communicator(part);
}

std::vector<int> Communicator::ranks_in_job() const
{
  if (!rehearsed_.empty()) return rehearsed_;
  MPI_Group own = MPI_GROUP_NULL, job = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(handle_, &own), "asking for the ranks of a group");
  check_mpi(MPI_Comm_group(job_ranks(), &job), "asking for the ranks of the job");
  std::vector<int> here(static_cast<std::size_t>(ranks_)), in_job(here.size());
  std::iota(here.begin(), here.end(), 0);
  check_mpi(MPI_Group_translate_ranks(own, ranks_, here.data(), job, in_job.data()), "asking for ranks in the job");
  check_mpi(MPI_Group_free(&own), "freeing a group of ranks");
  check_mpi(MPI_Group_free(&job), "freeing a group of ranks");
  return in_job;
}

}  // namespace rankwise
