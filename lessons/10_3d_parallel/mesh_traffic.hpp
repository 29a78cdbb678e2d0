#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/messages/layers/traffic_ledger.hpp"
#include "common/program/report.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// Bytes sent by each rank to each other rank.

namespace rankwise {

/// Bytes that this rank has sent along an axis so far, to each of N ranks: in the groups whose names begin with the
/// axis.
std::vector<std::int64_t> sent_to_ranks(const TrafficLedger& ledger, const std::string& axis, int N);

/// Bytes that this rank sent to each rank of the job, by axis.
using Receivers = std::map<std::string, std::vector<std::int64_t>>;

/// Counts messages along an axis during its lifetime, for the frame and by receiver. Both sums are those of a step.
class CountedByReceiver {
 public:
  /// @param run, receivers  outlive this object.
  CountedByReceiver(Run& run, std::string axis, Receivers& receivers);
  ~CountedByReceiver();
  CountedByReceiver(const CountedByReceiver&) = delete;
  CountedByReceiver& operator=(const CountedByReceiver&) = delete;

 private:
  Run& run_;
  std::string axis_;
  Receivers& receivers_;
  std::vector<std::int64_t> before_;
  Run::Counted counted_;
};

/// Enters the bytes that each rank sent to each other rank along an axis in the document, as
/// `receivers[axis][rank][rank]`, and checks that no message left the axis. All ranks make this call.
/// @param sent   bytes that this rank sent to each rank of the job.
/// @param peers  ranks of the job that it may send to.
void report_receivers(Report& report, const std::string& axis, const std::vector<std::int64_t>& sent,
                      const std::vector<int>& peers);

}  // namespace rankwise
