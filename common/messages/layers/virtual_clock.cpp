#include "common/messages/layers/virtual_clock.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

std::string_view name_of(Lane lane)
{
  return lane == Lane::compute ? "compute" : "communication";
}

VirtualClock::VirtualClock(const LinkOptions& link, double flops_per_s) : link_(link), flops_per_s_(flops_per_s)
{
  check(flops_per_s > 0, "a virtual clock needs a positive compute rate");
}

void VirtualClock::charge_compute(std::int64_t flops, std::string_view name)
{
  const Picoseconds time = time_of(flops);
  const std::lock_guard lock(mutex_);
  State& compute = state(Lane::compute);
  const Moment begin = std::exchange(compute.now, {later(compute.now.since_start, time)});
  step_.compute += time;
  step_.flops += flops;
  compute.spans.push_back({std::string(name), Lane::compute, begin, compute.now});
}

Moment VirtualClock::handed_over()
{
  const std::lock_guard lock(mutex_);
  ++not_waited_for_;
  return state(Lane::compute).now;
}

void VirtualClock::begin(Moment handed, std::string_view name)
{
  const std::lock_guard lock(mutex_);
  check(queue_ == std::thread::id(), "two collectives of a queue were under way at once on the virtual clock");
  queue_ = std::this_thread::get_id();
  State& communication = state(Lane::communication);
  communication.now = std::max(communication.now, handed);
  queued_ = {0, std::string(name), communication.now};
}

Moment VirtualClock::end()
{
  const std::lock_guard lock(mutex_);
  check(queue_ == std::this_thread::get_id(), "a collective ended that had not begun on the virtual clock");
  queue_ = std::thread::id();
  const Moment now = state(Lane::communication).now;
  close(queued_, now);
  return now;
}

void VirtualClock::wait_for(Moment ended)
{
  const std::lock_guard lock(mutex_);
  check(not_waited_for_ > 0, "a collective was waited for on the virtual clock that had not been handed over");
  --not_waited_for_;
  wait_until(ended);
}

Moment VirtualClock::now() const
{
  const std::lock_guard lock(mutex_);
  return lanes_[static_cast<std::size_t>(lane_of_thread())].now;
}

Moment VirtualClock::depart(Picoseconds occupied)
{
  const std::lock_guard lock(mutex_);
  State& lane = state_of_thread();
  const Moment departure = std::max(lane.now, lane.link_free);
  lane.link_free = {later(departure.since_start, occupied)};
  return departure;
}

void VirtualClock::arrive(Moment done)
{
  const std::lock_guard lock(mutex_);
  later(done.since_start, 0);
  if (lane_of_thread() == Lane::compute) return wait_until(done);
  State& communication = state(Lane::communication);
  communication.now = std::max(communication.now, done);
}

void VirtualClock::enter(std::string_view name)
{
  const std::lock_guard lock(mutex_);
  if (lane_of_thread() == Lane::communication || direct_.depth++ > 0) return;
  direct_.name = name;
  direct_.begin = state(Lane::compute).now;
}

void VirtualClock::leave()
{
  const std::lock_guard lock(mutex_);
  if (lane_of_thread() == Lane::communication || --direct_.depth > 0) return;
  close(direct_, state(Lane::compute).now);
}

VirtualStep VirtualClock::step()
{
  const std::lock_guard lock(mutex_);
  check(not_waited_for_ == 0,
        fmt::format("a step ended on the virtual clock while {} collectives were under way", not_waited_for_));
  const Moment now = state(Lane::compute).now;
  step_.step = now.since_start - step_began_.since_start;
  step_began_ = now;
  for (State& lane : lanes_) lane.spans.clear();
  return std::exchange(step_, {});
}

std::vector<VirtualSpan> VirtualClock::spans() const
{
  const std::lock_guard lock(mutex_);
  std::vector<VirtualSpan> all;
  for (const State& lane : lanes_) all.insert(all.end(), lane.spans.begin(), lane.spans.end());
  return all;
}

Lane VirtualClock::lane_of_thread() const
{
  return queue_ == std::this_thread::get_id() ? Lane::communication : Lane::compute;
}

void VirtualClock::wait_until(Moment moment)
{
  Moment& now = state(Lane::compute).now;
  if (moment <= now) return;
  step_.exposed += moment.since_start - now.since_start;
  now = moment;
}

void VirtualClock::close(const Open& open, Moment end)
{
  step_.communication += end.since_start - open.begin.since_start;
  state(Lane::communication).spans.push_back({open.name, Lane::communication, open.begin, end});
}

std::string timeline(std::span<const VirtualSpan> spans, int columns)
{
  Moment first{INT64_MAX}, last;
  for (const VirtualSpan& span : spans) {
    first = std::min(first, span.begin);
    last = std::max(last, span.end);
  }
  if (last <= first) return "";
  const double column = static_cast<double>(last.since_start - first.since_start) / columns;
  const auto column_of = [&](Moment moment) {  // the first column whose middle is not before it
    return std::llround(std::ceil(static_cast<double>(moment.since_start - first.since_start) / column - 0.5));
  };
  std::string picture;
  for (const Lane lane : {Lane::compute, Lane::communication}) {
    std::string line(static_cast<std::size_t>(columns), '.');
    for (const VirtualSpan& span : spans)
      for (auto c = column_of(span.begin); span.lane == lane && c < column_of(span.end); ++c)
        line[static_cast<std::size_t>(c)] = span.name.empty() ? '?' : span.name.front();
    picture += fmt::format("{:<13} |{}|\n", name_of(lane), line);
  }
  return picture;
}

}  // namespace rankwise
