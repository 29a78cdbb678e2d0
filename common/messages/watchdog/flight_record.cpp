#include "common/messages/watchdog/flight_record.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"

namespace rankwise {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CallRecord, number, name, algorithm, type, count, root, label, where, began_s,
                                   ended_s, still_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TransferRecord, sends, peer, bytes, label, where, collective, waited_for,
                                   since_s, still_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrackRecord, group, members, made, calls, last, transfers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HandleRecord, label, where, since_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MpiCallRecord, name, peer, bytes, code, where, since_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FlightRecord, answers, finished, working, idle_s, phase, span, mpi_calls, tracks,
                                   handles)

bool CallRecord::matches(const CallRecord& other) const
{
  const auto agreed = [](const CallRecord& c) {
    return std::tie(c.name, c.algorithm, c.type, c.count, c.root, c.label);
  };
  return agreed(*this) == agreed(other);
}

bool TrackRecord::same_group(const TrackRecord& other) const
{
  return group == other.group && members == other.members && made == other.made;
}

const CallRecord* TrackRecord::open_call() const
{
  return !last.empty() && last.back().open() ? &last.back() : nullptr;
}

const CallRecord* TrackRecord::call(std::int64_t number) const
{
  for (const CallRecord& call : last)
    if (call.number == number) return &call;
  return nullptr;
}

double FlightRecord::longest_s() const
{
  double longest = idle_s;
  for (const TrackRecord& track : tracks) {
    if (const CallRecord* call = track.open_call()) longest = std::max(longest, call->still_s);
    for (const TransferRecord& transfer : track.transfers) longest = std::max(longest, transfer.still_s);
  }
  for (const HandleRecord& handle : handles) longest = std::max(longest, handle.since_s);
  return longest;
}

std::string to_text(const FlightRecord& record)
{
  return json_text(record);
}

FlightRecord flight_record_from(const std::string& text)
{
  try {
    return parse_json(text).get<FlightRecord>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("a flight record that cannot be read: {}", error.what()));
  }
}

}  // namespace rankwise
