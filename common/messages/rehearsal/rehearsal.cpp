#include "common/messages/rehearsal/rehearsal.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/error.hpp"

namespace rankwise {

namespace {

using Kind = ScriptLine::Kind;

thread_local const Rehearsal* of_thread = nullptr;

}  // namespace

// ---- Script ---------------------------------------------------------------------------------------------------------

void StepScript::add(ScriptLine line)
{
  lanes_[static_cast<std::size_t>(lane_)].push_back(std::move(line));
}

// ---- Rehearsal ------------------------------------------------------------------------------------------------------

Rehearsal::Rehearsal(RankOf part, StepScript& written) : rank(part), script(written)
{
  check(of_thread == nullptr, "a thread cannot play two ranks at once");
  of_thread = this;
}

Rehearsal::~Rehearsal()
{
  of_thread = nullptr;
}

const Rehearsal* Rehearsal::current()
{
  return of_thread;
}

// ---- Clock ----------------------------------------------------------------------------------------------------------

RehearsedClock::RehearsedClock(const LinkOptions& link, double flops_per_s, StepScript& script)
    : VirtualClock(link, flops_per_s), script_(script)
{
}

void RehearsedClock::charge_compute(std::int64_t flops, std::string_view)
{
  script_.add({.kind = Kind::compute, .takes = time_of(flops), .flops = flops});
}

Moment RehearsedClock::handed_over()
{
  script_.add({.kind = Kind::hand_over, .number = handed_over_});
  return {handed_over_++};
}

void RehearsedClock::begin(Moment handed, std::string_view)
{
  script_.switch_to(Lane::communication);
  under_way_ = handed;
  script_.add({.kind = Kind::begin, .number = handed.since_start});
}

Moment RehearsedClock::end()
{
  script_.add({.kind = Kind::end, .number = under_way_.since_start});
  script_.switch_to(Lane::compute);
  return under_way_;
}

void RehearsedClock::wait_for(Moment ended)
{
  script_.add({.kind = Kind::wait, .number = ended.since_start});
}

VirtualStep RehearsedClock::step()
{
  script_.add({.kind = Kind::step});
  return {};
}

// ---- Transport ------------------------------------------------------------------------------------------------------

RehearsedTransport::RehearsedTransport(std::string group, std::vector<int> ranks_in_job, int rank, Stream& stream,
                                       StepScript& script)
    : group_(std::move(group)),
      ranks_in_job_(std::move(ranks_in_job)),
      rank_(rank),
      stream_(stream),
      script_(script)
{
}

namespace {

/// Receives choices, which decide later messages: all ranks are taken to make the same ones, so a rank's own are
/// copied.
void receive_choices(std::span<const Transfer> transfers)
{
  const auto is_choices = [](Transfer::Direction direction) {
    return [direction](const Transfer& t) { return t.direction == direction && t.data.type() == DType::i32; };
  };
  const auto sent = std::ranges::find_if(transfers, is_choices(Transfer::Direction::send));
  const auto received = std::ranges::find_if(transfers, is_choices(Transfer::Direction::receive));
  if (sent == transfers.end() || received == transfers.end()) return;
  std::memcpy(received->data.raw(), sent->data.raw(),
              static_cast<std::size_t>(std::min(sent->data.bytes(), received->data.bytes())));
}

}  // namespace

Ticket RehearsedTransport::start(std::span<const Transfer> transfers)
{
  receive_choices(transfers);
  ScriptLine line{.kind = Kind::start, .number = script_.next_transfer()};
  for (const Transfer& transfer : transfers)
    if (const std::int64_t bytes = transfer.data.bytes(); bytes > 0)
      line.messages.push_back(
          {transfer.direction, ranks_in_job_.at(static_cast<std::size_t>(transfer.peer)), group_, bytes});
  const Ticket ticket = line.number;
  script_.add(std::move(line));
  return ticket;
}

void RehearsedTransport::finish(Ticket ticket)
{
  script_.add({.kind = Kind::finish, .number = ticket});
}

void RehearsedTransport::enter(const Collective&)
{
  script_.add({.kind = Kind::enter});
}

void RehearsedTransport::leave()
{
  script_.add({.kind = Kind::leave});
}

}  // namespace rankwise
