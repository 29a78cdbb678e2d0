#include "lessons/parallel/pipeline/schedule_check.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"

namespace rankwise {

namespace {

/// The element with the number of a rank, a micro-batch or a stage.
template <class Vector>
auto& at(Vector& of_all, int number)
{
  return of_all[static_cast<std::size_t>(number)];
}

}  // namespace

// ---- Times ----------------------------------------------------------------------------------------------------------

std::int64_t ActionCosts::of(ActionKind kind) const
{
  if (kind == ActionKind::forward) return forward;
  return again + (kind == ActionKind::backward_weights ? 0 : backward_input) +
         (kind == ActionKind::backward_input ? 0 : backward_weights);
}

std::int64_t TimedSchedule::busy(int rank) const
{
  std::int64_t sum = 0;
  for (const TimedAction& timed : at(actions, rank)) sum += timed.end - timed.begin;
  return sum;
}

double TimedSchedule::idle_share() const
{
  const auto ranks = static_cast<int>(actions.size());
  std::int64_t work = 0;
  for (int rank = 0; rank < ranks; ++rank) work += busy(rank);
  const std::int64_t time = length * ranks;
  return time == 0 ? 0 : static_cast<double>(time - work) / static_cast<double>(time);
}

namespace {

/// An action and its place in the lists, for error messages.
std::string place(const PipelineSchedule& schedule, int rank, std::size_t number)
{
  return fmt::format("rank {}, action {}, {}", rank, number, describe(at(schedule.actions, rank)[number]));
}

// ---- The work of one rank -------------------------------------------------------------------------------------------

/// A set of passes of one micro-batch through one stage, as the bitwise or of these.
constexpr unsigned F = 1, B = 2, W = 4;

unsigned passes_of(ActionKind kind)
{
  if (kind == ActionKind::forward) return F;
  return (kind == ActionKind::backward_weights ? 0 : B) | (kind == ActionKind::backward_input ? 0 : W);
}

bool has_backward_passes(const PipelineSchedule& schedule)
{
  return std::ranges::any_of(schedule.max_in_flight, [](int most) { return most > 0; });
}

/// Passes done so far, by micro-batch and stage.
using Done = std::map<std::pair<int, int>, unsigned>;

/// The reason why an action cannot be the next one on a rank; empty if it can.
std::string objection(const PipelineSchedule& schedule, int rank, const Action& action, Done& done)
{
  if (action.micro_batch < 0 || action.micro_batch >= schedule.micro_batches)
    return fmt::format("there are {} micro-batches", schedule.micro_batches);
  if (action.stage < 0 || action.stage >= schedule.stages())
    return fmt::format("there are {} stages", schedule.stages());
  if (schedule.rank_of(action.stage) != rank)
    return fmt::format("that stage is on rank {}", schedule.rank_of(action.stage));
  const unsigned passes = passes_of(action.kind), before = done[{action.micro_batch, action.stage}];
  if ((passes & before) != 0) return "it has been done before";
  if (passes == F) return "";
  if (!has_backward_passes(schedule))
    return "a schedule with no micro-batch in flight keeps no activations for a backward pass";
  if ((before & F) == 0) return "its forward pass has not been done";
  if (passes == W && (before & B) == 0) return "the gradient of its input has not been computed";
  return "";
}

/// Refuses a list in which an action is missing.
void check_complete(const PipelineSchedule& schedule, int rank, Done& done)
{
  using Kind = ActionKind;
  for (int i = 0; i < schedule.micro_batches; ++i)
    for (int stage = rank; stage < schedule.stages(); stage += schedule.ranks)
      for (const Kind kind : {Kind::forward, Kind::backward_input, Kind::backward_weights}) {
        if ((done[{i, stage}] & passes_of(kind)) != 0) continue;
        if (kind != Kind::forward && !has_backward_passes(schedule)) continue;
        const Action missing{kind == Kind::backward_input ? Kind::backward : kind, i, stage};
        throw Error(fmt::format("rank {}: {} is missing", rank, describe(missing)));
      }
}

/// Refuses a list that is not the work of its rank, or that has more or fewer than max_in_flight in flight.
/// @return  the most activations that are kept at once.
int check_list(const PipelineSchedule& schedule, int rank)
{
  const std::vector<Action>& list = at(schedule.actions, rank);
  const int allowed = at(schedule.max_in_flight, rank), kept_of_each = has_backward_passes(schedule) ? 1 : 0;
  Done done;
  const auto refuse = [&](std::size_t number, const std::string& why) {
    throw Error(fmt::format("{}: {}", place(schedule, rank, number), why));
  };
  int kept = 0, most = 0;
  std::optional<std::size_t> one_too_many, first_backward;
  for (std::size_t number = 0; number < list.size(); ++number) {
    const auto& [kind, micro_batch, stage] = list[number];
    if (const std::string why = objection(schedule, rank, list[number], done); !why.empty()) refuse(number, why);
    done[{micro_batch, stage}] |= passes_of(kind);
    kept += kind == ActionKind::forward ? kept_of_each : (passes_of(kind) & W) != 0 ? -1 : 0;
    most = std::max(most, kept);
    if (kept > allowed && !one_too_many) one_too_many = number;
    if (kind != ActionKind::forward && !first_backward) first_backward = number;
  }
  check_complete(schedule, rank, done);
  if (one_too_many)
    refuse(*one_too_many, fmt::format("it is one too many: the rank holds the activations of at most {}", allowed));
  if (most < allowed)
    refuse(*first_backward,
           fmt::format("its warm-up is short: the rank holds the activations of {} at most, and could hold {}",
                       most, allowed));
  return most;
}

// ---- Carried out ----------------------------------------------------------------------------------------------------

/// A message that has been sent to a rank.
struct Message {
  int micro_batch, stage;  // stage that needs it
  std::size_t number;      // place of the action that sends it, in its rank's list
  std::int64_t arrival;    // in units of time
};

/// Simulation of all ranks.
class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const std::vector<ActionCosts>& costs)
      : schedule_(schedule), costs_(costs)
  {
    timed_.actions.resize(schedule.actions.size());
  }

  /// Advances every rank as far as possible, until no rank can continue.
  TimedSchedule run()
  {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) moved = advance(rank) || moved;
    }
    check_no_rank_waits();
    return std::move(timed_);
  }

 private:
  /// Runs a rank's actions until one lacks its input; returns whether any ran.
  bool advance(int rank)
  {
    const std::vector<Action>& list = at(schedule_.actions, rank);
    std::vector<TimedAction>& timed = timed_.actions[static_cast<std::size_t>(rank)];
    const std::size_t before = timed.size();
    for (std::size_t number = before; number < list.size(); ++number) {
      const Action& action = list[number];
      const bool forwards = action.kind == ActionKind::forward;
      const int next = action.stage + (forwards ? 1 : -1);
      std::int64_t begin = timed.empty() ? 0 : timed.back().end;
      if (receives(schedule_, action)) {
        std::deque<Message>& channel = channels_[{rank, forwards}];
        if (channel.empty()) break;
        check_message(rank, number, channel.front());
        begin = std::max(begin, channel.front().arrival);
        channel.pop_front();
      }
      const std::int64_t end = begin + at(costs_, action.stage).of(action.kind);
      if (sends(schedule_, action))
        channels_[{schedule_.rank_of(next), forwards}].push_back({action.micro_batch, next, number, end});
      timed.push_back({action, begin, end});
      timed_.length = std::max(timed_.length, end);
    }
    return timed.size() > before;
  }

  /// Refuses a message that arrives at an action which needs another one.
  void check_message(int rank, std::size_t number, const Message& message) const
  {
    const Action& action = at(schedule_.actions, rank)[number];
    if (message.micro_batch == action.micro_batch && message.stage == action.stage) return;
    const int from = schedule_.rank_of(message.stage + (action.kind == ActionKind::forward ? -1 : 1));
    throw Error(
        fmt::format("{}: what arrives then is what rank {} sends in its action {}, of micro-batch {} for stage {}",
                    place(schedule_, rank, number), from, message.number, message.micro_batch, message.stage));
  }

  /// Refuses a schedule that ends in a deadlock: some ranks have not reached the end of their lists.
  void check_no_rank_waits() const
  {
    std::vector<std::string> waiting;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const std::vector<Action>& list = at(schedule_.actions, rank);
      const std::size_t number = at(timed_.actions, rank).size();
      if (number == list.size()) continue;
      const bool forwards = list[number].kind == ActionKind::forward;
      const int stage = list[number].stage + (forwards ? -1 : 1);
      waiting.push_back(fmt::format("{}, waits for {} from stage {} of rank {}", place(schedule_, rank, number),
                                    forwards ? "rows" : "a gradient", stage, schedule_.rank_of(stage)));
    }
    check(waiting.empty(), fmt::format("deadlock, ranks wait for each other: {}", fmt::join(waiting, "; ")));
  }

  const PipelineSchedule& schedule_;
  const std::vector<ActionCosts>& costs_;
  std::map<std::pair<int, bool>, std::deque<Message>> channels_;  // to each rank, of rows (true) and of gradients
  TimedSchedule timed_;
};

}  // namespace

bool receives(const PipelineSchedule& schedule, const Action& action)
{
  if (action.kind == ActionKind::backward_weights) return false;
  return action.stage != (action.kind == ActionKind::forward ? 0 : schedule.stages() - 1);
}

bool sends(const PipelineSchedule& schedule, const Action& action)
{
  if (action.kind == ActionKind::backward_weights) return false;
  return action.stage != (action.kind == ActionKind::forward ? schedule.stages() - 1 : 0);
}

TimedSchedule check_schedule(const PipelineSchedule& schedule, const std::vector<ActionCosts>& costs)
{
  const auto p = static_cast<std::size_t>(schedule.ranks);
  check(schedule.ranks >= 1 && schedule.virtual_stages >= 1 && schedule.micro_batches >= 1,
        "a schedule without ranks, stages or micro-batches");
  check(schedule.actions.size() == p && schedule.max_in_flight.size() == p,
        fmt::format("{} ranks have {} lists of actions and {} values of max_in_flight", p, schedule.actions.size(),
                    schedule.max_in_flight.size()));
  check(costs.size() == static_cast<std::size_t>(schedule.stages()),
        fmt::format("the costs of {} stages are given, and there are {}", costs.size(), schedule.stages()));
  std::vector<int> in_flight;
  for (int rank = 0; rank < schedule.ranks; ++rank) in_flight.push_back(check_list(schedule, rank));
  TimedSchedule timed = Simulation(schedule, costs).run();
  timed.in_flight = in_flight;
  return timed;
}

TimedSchedule check_schedule(const PipelineSchedule& schedule, const ActionCosts& costs)
{
  return check_schedule(schedule, std::vector(static_cast<std::size_t>(schedule.stages()), costs));
}

// ---- Drawn ----------------------------------------------------------------------------------------------------------

std::string draw(const TimedSchedule& timed, int columns)
{
  check(columns > 0, "a drawing without columns");
  const auto letter = [](const Action& action) {
    if (action.kind == ActionKind::forward) return static_cast<char>('0' + action.micro_batch % 10);
    const char first = action.kind == ActionKind::backward_weights ? 'A' : 'a';
    return static_cast<char>(first + action.micro_batch % 26);
  };
  std::string text;
  for (std::size_t rank = 0; rank < timed.actions.size(); ++rank) {
    std::string line(static_cast<std::size_t>(columns), '.');
    auto action = timed.actions[rank].begin();
    for (int column = 0; column < columns; ++column) {
      const double middle = (column + 0.5) * static_cast<double>(timed.length) / columns;
      while (action != timed.actions[rank].end() && static_cast<double>(action->end) <= middle) ++action;
      if (action != timed.actions[rank].end() && static_cast<double>(action->begin) <= middle)
        line[static_cast<std::size_t>(column)] = letter(action->action);
    }
    text += fmt::format("rank {:>2} |{}|\n", rank, line);
  }
  return text;
}

}  // namespace rankwise
