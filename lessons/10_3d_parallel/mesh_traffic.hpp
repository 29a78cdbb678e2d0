#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/messages/layers/traffic_ledger.hpp"
#include "common/program/report.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// Who sends how much to whom.

namespace rankwise {

/// Bytes that this rank has sent so far along an axis, to each of N ranks: in the groups whose names begin with the axis's.
std::vector<std::int64_t> sent_to_ranks(const TrafficLedger& ledger, const std::string& axis, int N);

/// By axis, bytes that this rank sent to each rank of the job.
using Receivers = std::map<std::string, std::vector<std::int64_t>>;

/// From its making to its end counts what is sent along an axis, for the frame and by receiver. Both sums are those of a step.
class CountedByReceiver {
 public:
  /// @param run, receivers  outlive it.
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

/// Enters who sent how much to whom along an axis in the document, as `receivers[axis][rank][rank]` in bytes; a check that no
/// message left the axis. All ranks make this call.
/// @param sent   bytes to each rank of the job, by this rank.
/// @param peers  the ranks of the job that it may send to.
void report_receivers(Report& report, const std::string& axis, const std::vector<std::int64_t>& sent,
                      const std::vector<int>& peers);

}  // namespace rankwise
