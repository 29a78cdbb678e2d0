#include "common/messages/flight_recorder.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/session.hpp"

namespace rankwise {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to)
{
  return std::chrono::duration<double>(to - from).count();
}

std::string text_of(SourceLocation where)
{
  return fmt::format("{}:{}", short_file_name(where.file_name()), where.line());
}

}  // namespace

FlightRecorder::Track FlightRecorder::open_track(const std::string& group, std::vector<int> members)
{
  const std::lock_guard lock(mutex_);
  std::int64_t made = 0;
  auto place = tracks_.end();
  for (auto track = tracks_.begin(); track != tracks_.end(); ++track) {
    if (track->group != group || track->members != members) continue;
    made = std::max(made, track->made + 1);
    if (!track->open) place = track;
  }
  if (place == tracks_.end()) place = tracks_.emplace(place);
  *place = {group, std::move(members), made};
  return static_cast<Track>(place - tracks_.begin());
}

void FlightRecorder::close_track(Track track)
{
  const std::lock_guard lock(mutex_);
  tracks_[track].open = false;
}

void FlightRecorder::enter(Track track, const Collective& collective)
{
  const std::lock_guard lock(mutex_);
  GroupTrack& group = tracks_[track];
  if (group.last.size() < kept_calls)
    group.last.emplace_back();
  else
    std::rotate(group.last.begin(), group.last.begin() + 1, group.last.end());
  Call& call = group.last.back();
  call.number = ++group.calls;
  call.collective = collective;
  call.collective.label = {};
  call.label = collective.label;
  call.open = true;
  call.thread = std::this_thread::get_id();
  call.began = moved_[call.thread] = Clock::now();
}

void FlightRecorder::leave(Track track, bool made)
{
  const std::lock_guard lock(mutex_);
  GroupTrack& group = tracks_[track];
  Call& call = group.last.back();
  call.open = false;
  call.ended = moved_[call.thread] = Clock::now();
  if (made) return;
  --group.calls;
  group.last.pop_back();
}

void FlightRecorder::start(Track track, Ticket ticket, std::span<const Transfer> transfers)
{
  const std::lock_guard lock(mutex_);
  GroupTrack& group = tracks_[track];
  const std::thread::id thread = std::this_thread::get_id();
  const Clock::time_point now = moved_[thread] = Clock::now();
  const std::int64_t collective = !group.last.empty() && group.last.back().open ? group.calls : 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.data.bytes() == 0) continue;
    group.messages.push_back({ticket, transfer.direction, group.members.at(static_cast<std::size_t>(transfer.peer)),
                              transfer.data.bytes(), transfer.where, collective, false, now, thread});
  }
}

void FlightRecorder::wait(Track track, Ticket ticket)
{
  const std::lock_guard lock(mutex_);
  for (Message& message : tracks_[track].messages) {
    if (message.ticket != ticket) continue;
    message.waited_for = true;
    if (message.collective == 0) message.label = CollectiveLabel::current();
  }
}

void FlightRecorder::finish(Track track, Ticket ticket)
{
  const std::lock_guard lock(mutex_);
  moved_[std::this_thread::get_id()] = Clock::now();
  std::erase_if(tracks_[track].messages, [&](const Message& message) { return message.ticket == ticket; });
}

std::int64_t FlightRecorder::handle_started(std::string_view label, SourceLocation where)
{
  const std::lock_guard lock(mutex_);
  handles_.push_back({++handles_started_, std::string(label), where, Clock::now()});
  return handles_started_;
}

void FlightRecorder::handle_waited(std::int64_t handle)
{
  const std::lock_guard lock(mutex_);
  std::erase_if(handles_, [&](const Handle& h) { return h.number == handle; });
}

void FlightRecorder::set_finished(bool finished)
{
  const std::lock_guard lock(mutex_);
  finished_ = finished;
}

void FlightRecorder::restart_clocks()
{
  const std::lock_guard lock(mutex_);
  not_before_ = Clock::now();
}

double FlightRecorder::still_s(Clock::time_point began, std::thread::id thread, Clock::time_point now) const
{
  return seconds_between(std::max({began, moved_.at(thread), not_before_}), now);
}

double FlightRecorder::longest_s() const
{
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  double longest = 0;
  for (const GroupTrack& track : tracks_) {
    if (!track.last.empty() && track.last.back().open)
      longest = std::max(longest, still_s(track.last.back().began, track.last.back().thread, now));
    for (const Message& message : track.messages)
      longest = std::max(longest, still_s(message.began, message.thread, now));
  }
  for (const Handle& handle : handles_)
    longest = std::max(longest, seconds_between(std::max(handle.began, not_before_), now));
  return longest;
}

CallRecord FlightRecorder::record_of(const Call& call, Clock::time_point now) const
{
  const Collective& collective = call.collective;
  return {.number = call.number,
          .name = std::string(collective.name),
          .algorithm = std::string(collective.algorithm),
          .type = std::string(name_of(collective.type)),
          .count = collective.count,
          .root = collective.root,
          .label = call.label,
          .where = text_of(collective.where),
          .began_s = seconds_between(call.began, now),
          .ended_s = call.open ? -1 : seconds_between(call.ended, now),
          .still_s = call.open ? still_s(call.began, call.thread, now) : 0};
}

TrackRecord FlightRecorder::record_of(const GroupTrack& track, Clock::time_point now) const
{
  TrackRecord record{track.group, track.members, track.made, track.calls, {}, {}};
  for (const Call& call : track.last) record.last.push_back(record_of(call, now));
  for (const Message& message : track.messages)
    record.transfers.push_back({.sends = message.direction == Transfer::Direction::send,
                                .peer = message.peer,
                                .bytes = message.bytes,
                                .label = message.label,
                                .where = text_of(message.where),
                                .collective = message.collective,
                                .waited_for = message.waited_for,
                                .since_s = seconds_between(message.began, now),
                                .still_s = still_s(message.began, message.thread, now)});
  return record;
}

FlightRecord FlightRecorder::record() const
{
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  FlightRecord record;
  record.finished = finished_;
  if (time_ != nullptr) record.span = time_->open_span();
  for (const GroupTrack& track : tracks_) record.tracks.push_back(record_of(track, now));
  for (const Handle& handle : handles_)
    record.handles.push_back(
        {handle.label, text_of(handle.where), seconds_between(std::max(handle.began, not_before_), now)});
  return record;
}

WatchedTransport::WatchedTransport(Transport& inner, FlightRecorder& recorder, const Communicator& communicator,
                                   const std::string& group)
    : TransportLayer(inner), recorder_(recorder), track_(recorder.open_track(group, communicator.ranks_in_job()))
{
}

WatchedTransport::~WatchedTransport()
{
  recorder_.close_track(track_);
}

Ticket WatchedTransport::start(std::span<const Transfer> transfers)
{
  const Ticket ticket = TransportLayer::start(transfers);
  recorder_.start(track_, ticket, transfers);
  return ticket;
}

void WatchedTransport::finish(Ticket ticket)
{
  recorder_.wait(track_, ticket);
  TransportLayer::finish(ticket);
  recorder_.finish(track_, ticket);
}

void WatchedTransport::enter(const Collective& collective)
{
  recorder_.enter(track_, collective);
  try {
    TransportLayer::enter(collective);
  } catch (...) {
    recorder_.leave(track_, false);
    throw;
  }
}

void WatchedTransport::leave()
{
  TransportLayer::leave();
  recorder_.leave(track_);
}

}  // namespace rankwise
