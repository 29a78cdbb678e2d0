#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"

namespace rankwise {

namespace {

using Kind = ScriptLine::Kind;

/// Messages from a sender to a receiver in a group, whose departures arrive in order.
using Channel = std::tuple<int, int, std::string>;

/// A message that a rank waits for.
struct Expected {
  Channel channel;
  std::size_t number;  // number of the message in its channel, from 0
  Picoseconds takes;   // time that it travels
};

/// A transfer under way on one rank.
struct OpenTransfer {
  Picoseconds sent = 0;  // time at which its last message has left the link
  std::vector<Expected> expected;
};

/// One lane of one rank as it keeps to its script.
struct Player {
  int rank;
  Lane lane;
  const std::vector<ScriptLine>* lines;
  std::size_t next = 0;       // line
  Picoseconds now = 0;        // time of this lane
  Picoseconds link_free = 0;  // time at which its link can send again
  Picoseconds step_began = 0;
  Picoseconds entered = 0;  // time at which the collective under way began
  int depth = 0;            // nesting depth of collectives without the queue

  bool done() const { return next == lines->size(); }
};

/// All ranks of a job.
class Stage {
 public:
  Stage(const std::vector<StepScript>& scripts, const LinkOptions& links)
      : links_(links),
        steps_(scripts.size()),
        last_(scripts.size()),
        handed_(scripts.size()),
        ended_(scripts.size()),
        open_(scripts.size())
  {
    for (std::size_t r = 0; r < scripts.size(); ++r)
      for (const Lane lane : {Lane::compute, Lane::communication})
        players_.push_back({static_cast<int>(r), lane, &scripts[r].lines(lane)});
  }

  /// Every lane performs its lines until one has to wait for another lane, in turns until all are done.
  std::vector<VirtualStep> play()
  {
    for (bool moved = true; moved;) {
      moved = false;
      for (Player& player : players_)
        while (!player.done() && perform(player, (*player.lines)[player.next])) {
          ++player.next;
          moved = true;
        }
    }
    for (const Player& player : players_)
      check(player.done(),
            fmt::format("rank {} waits in line {} of its script without end", player.rank, player.next));
    return last_;
  }

 private:
  static std::size_t index(const Player& player) { return static_cast<std::size_t>(player.rank); }

  /// The computation waits; the time is exposed.
  void wait_until(Player& player, Picoseconds moment)
  {
    if (moment <= player.now) return;
    if (player.lane == Lane::compute) steps_[index(player)].exposed += moment - player.now;
    player.now = moment;
  }

  /// @return  true if the line could be performed; if not, it waits for another lane.
  bool perform(Player& player, const ScriptLine& line)
  {
    VirtualStep& step = steps_[index(player)];
    std::map<std::int64_t, Picoseconds>&handed = handed_[index(player)], &ended = ended_[index(player)];
    switch (line.kind) {
      case Kind::compute:
        player.now = later(player.now, line.takes);
        step.compute += line.takes;
        step.flops += line.flops;
        return true;
      case Kind::start:
        start(player, line);
        return true;
      case Kind::finish:
        return finish(player, line.number);
      case Kind::hand_over:
        handed[line.number] = player.now;
        return true;
      case Kind::begin:
        if (!handed.contains(line.number)) return false;
        player.now = player.entered = std::max(player.now, handed.at(line.number));
        return true;
      case Kind::end:
        step.communication += player.now - player.entered;
        ended[line.number] = player.now;
        return true;
      case Kind::wait:
        if (!ended.contains(line.number)) return false;
        wait_until(player, ended.at(line.number));
        return true;
      case Kind::enter:
        if (player.lane == Lane::compute && player.depth++ == 0) player.entered = player.now;
        return true;
      case Kind::leave:
        if (player.lane == Lane::compute && --player.depth == 0) step.communication += player.now - player.entered;
        return true;
      case Kind::step:
        step.step = player.now - std::exchange(player.step_began, player.now);
        last_[index(player)] = std::exchange(step, {});
        return true;
    }
    return true;
  }

  /// Messages depart one after the other as soon as the lane's link is free.
  void start(Player& player, const ScriptLine& line)
  {
    OpenTransfer& transfer = open_[index(player)][line.number];
    for (const RehearsedMessage& message : line.messages) {
      const Link& link = links_.of(player.rank, message.peer);
      const Picoseconds occupied = link.occupied(message.bytes);
      if (message.direction == Transfer::Direction::send) {
        const Picoseconds departure = std::max(player.now, player.link_free);
        player.link_free = transfer.sent = later(departure, occupied);
        departures_[{player.rank, message.peer, message.group}].push_back(departure);
      } else {
        const Channel channel{message.peer, player.rank, message.group};
        transfer.expected.push_back({channel, expected_[channel]++, link.latency + occupied});
      }
    }
  }

  /// A transfer is done when its last message has arrived or left the link.
  bool finish(Player& player, std::int64_t number)
  {
    const OpenTransfer& transfer = open_[index(player)].at(number);
    Picoseconds done = transfer.sent;
    for (const Expected& message : transfer.expected) {
      const std::vector<Picoseconds>& departed = departures_[message.channel];
      if (departed.size() <= message.number) return false;
      done = std::max(done, later(departed[message.number], message.takes));
    }
    wait_until(player, done);
    open_[index(player)].erase(number);
    return true;
  }

  const LinkOptions& links_;
  std::vector<Player> players_;
  std::vector<VirtualStep> steps_, last_;  // by rank: the step under way, and the one before
  std::vector<std::map<std::int64_t, Picoseconds>> handed_, ended_;  // by rank: collectives of the queue
  std::vector<std::map<std::int64_t, OpenTransfer>> open_;           // by rank: transfers under way
  std::map<Channel, std::vector<Picoseconds>> departures_;  // departures of each channel's messages, in order
  std::map<Channel, std::size_t> expected_;                 // number of messages that were asked for
};

}  // namespace

std::vector<VirtualStep> replay(const std::vector<StepScript>& scripts, const LinkOptions& links)
{
  return Stage(scripts, links).play();
}

}  // namespace rankwise
