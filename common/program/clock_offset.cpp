#include "common/program/clock_offset.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "common/base/json.hpp"

namespace rankwise {

namespace {

constexpr int questions = 50;  // questions of each rank

std::int64_t if_larger(std::int64_t difference_ns, std::int64_t error_ns)
{
  return std::abs(difference_ns) > error_ns ? difference_ns : 0;
}

}  // namespace

ClockOffset measure_clock(const Session& session, const std::function<std::int64_t()>& now)
{
  const auto send = [](std::int64_t time, int to) {
    check_mpi(MPI_Send(&time, 1, MPI_INT64_T, to, 0, job_ranks()), "comparing clocks");
  };
  const auto receive = [](int from) {
    std::int64_t time = 0;
    check_mpi(MPI_Recv(&time, 1, MPI_INT64_T, from, 0, job_ranks(), MPI_STATUS_IGNORE), "comparing clocks");
    return time;
  };
  ClockOffset best{.at_ns = now(), .error_ns = session.rank() == 0 ? 0 : std::numeric_limits<std::int64_t>::max()};
  for (int rank = 1; rank < session.ranks(); ++rank)
    for (int i = 0; i < questions; ++i)
      if (session.rank() == 0) {
        receive(rank);
        send(now(), rank);
      } else if (session.rank() == rank) {
        const std::int64_t asked = now();
        send(asked, 0);
        const std::int64_t answer = receive(0), half = (now() - asked + 1) / 2;
        if (half < best.error_ns) best = {asked + half, answer - (asked + half), half};
      }
  return best;
}

AlignedClock::AlignedClock(const std::optional<ClockOffset>& begin, const ClockOffset& end)
    : best_(begin && begin->error_ns < end.error_ns ? *begin : end), error_ns_(best_.error_ns)
{
  if (begin && end.at_ns > begin->at_ns) {
    measured_drift_ns_ = end.offset_ns - begin->offset_ns;
    drift_ns_ = if_larger(measured_drift_ns_, begin->error_ns + end.error_ns);
    span_ns_ = end.at_ns - begin->at_ns;
    if (drift_ns_ != 0) error_ns_ = std::max(begin->error_ns, end.error_ns);  // near to either of them
  }
  offset_ns_ = drift_ns_ != 0 ? best_.offset_ns : if_larger(best_.offset_ns, best_.error_ns);
}

std::int64_t AlignedClock::operator()(std::int64_t time_ns) const
{
  const double drifted = static_cast<double>(time_ns - best_.at_ns) / static_cast<double>(span_ns_);
  return time_ns + offset_ns_ + std::llround(drifted * static_cast<double>(drift_ns_));
}

nlohmann::json AlignedClock::json() const
{
  const auto us = [](std::int64_t ns) { return 1e-3 * static_cast<double>(ns); };
  return {{"offset_us", us(best_.offset_ns)},
          {"error_us", us(error_ns_)},
          {"drift_us", us(measured_drift_ns_)},
          {"corrected", offset_ns_ != 0 || drift_ns_ != 0}};
}

}  // namespace rankwise
