#include "common/messages/watchdog/flight_recorder.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/activity.hpp"
#include "common/base/text.hpp"
#include "common/program/code_places.hpp"
#include "common/program/session.hpp"

namespace rankwise {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to)
{
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

FlightRecorder& flight_recorder()
{
  static auto* const recorder = new FlightRecorder;  // never destroyed: threads may use it until the process ends
  return *recorder;
}

void FlightRecorder::follow(const TimeLedger* time)
{
  const std::lock_guard lock(mutex_);
  time_ = time;
}

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
  std::vector<Counted> counts = std::move(place->counts);
  *place = {group, std::move(members), made};
  place->counts = std::move(counts);
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

/// Index of the count for messages of this kind among a track's counts.
std::size_t FlightRecorder::place_of_count(GroupTrack& track, int peer, std::string_view name, SourceLocation where)
{
  const auto found = std::find_if(track.counts.begin(), track.counts.end(), [&](const Counted& counted) {
    return counted.peer == peer && counted.name == name && counted.where.line() == where.line() &&
           std::string_view(counted.where.file_name()) == where.file_name();
  });
  const auto place = static_cast<std::size_t>(found - track.counts.begin());
  if (found == track.counts.end()) track.counts.push_back({peer, name, where});
  return place;
}

void FlightRecorder::leave(Track track, bool made)
{
  const std::lock_guard lock(mutex_);
  GroupTrack& group = tracks_[track];
  Call& call = group.last.back();
  call.open = false;
  call.ended = moved_[call.thread] = Clock::now();
  note_progress();
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
  const Call* const call = !group.last.empty() && group.last.back().open ? &group.last.back() : nullptr;
  for (const Transfer& transfer : transfers) {
    if (transfer.data.bytes() == 0) continue;
    const int peer = group.members.at(static_cast<std::size_t>(transfer.peer));
    const std::size_t counted =
        place_of_count(group, peer, call != nullptr ? call->collective.name : std::string_view(),
                       call != nullptr ? call->collective.where : transfer.where);
    if (transfer.direction == Transfer::Direction::send) ++group.counts[counted].sent;
    group.messages.push_back({ticket, transfer.direction, peer, transfer.data.bytes(), transfer.where,
                              call != nullptr ? call->number : 0, false, now, thread, counted});
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
  note_progress();
  GroupTrack& group = tracks_[track];
  std::erase_if(group.messages, [&](const Message& message) {
    if (message.ticket != ticket) return false;
    if (message.direction == Transfer::Direction::receive) ++group.counts[message.counted].received;
    return true;
  });
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

std::int64_t FlightRecorder::mpi_call_began(std::string_view name, int peer, std::int64_t bytes, const void* where)
{
  const std::lock_guard lock(mutex_);
  mpi_calls_.push_back(
      {++mpi_calls_begun_,
       {.name = std::string(name), .peer = peer, .bytes = bytes, .code = place_in_program(where), .where = ""},
       Clock::now()});
  return mpi_calls_begun_;
}

void FlightRecorder::mpi_call_ended(std::int64_t call)
{
  const std::lock_guard lock(mutex_);
  std::erase_if(mpi_calls_, [&](const MpiCall& c) { return c.number == call; });
  note_progress();
}

void FlightRecorder::count_mpi_message(bool sends, int peer)
{
  const std::lock_guard lock(mutex_);
  MessageCount& count = mpi_counts_[peer];
  ++(sends ? count.sent : count.received);
}

void FlightRecorder::do_not_count_mpi_messages()
{
  const std::lock_guard lock(mutex_);
  counts_mpi_messages_ = false;
}

std::vector<MessageCount> FlightRecorder::counts() const
{
  const std::lock_guard lock(mutex_);
  std::vector<MessageCount> all;
  for (const GroupTrack& track : tracks_)
    for (const Counted& c : track.counts)
      all.push_back(
          {track.group, track.members, std::string(c.name), text_of(c.where), c.peer, c.sent, c.received});
  if (!counts_mpi_messages_) {
    all.push_back({.group = "MPI", .peer = MessageCount::not_counted});
    return all;
  }
  for (const auto& [peer, count] : mpi_counts_)
    all.push_back({.group = "MPI", .peer = peer, .sent = count.sent, .received = count.received});
  return all;
}

void FlightRecorder::set_finished(bool finished)
{
  const std::lock_guard lock(mutex_);
  finished_ = finished;
}

void FlightRecorder::forget()
{
  const std::lock_guard lock(mutex_);
  tracks_.clear();
  handles_.clear();
  mpi_counts_.clear();
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
  record.phase = Phase::current();
  if (time_ != nullptr) record.span = time_->open_span();
  for (const MpiCall& call : mpi_calls_)
    record.mpi_calls.emplace_back(call.record).since_s = seconds_between(std::max(call.began, not_before_), now);
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
