#include "lessons/09_pipeline_parallel/schedule_check.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"

namespace rankwise {

// ---- Times ----------------------------------------------------------------------------------------------------------

std::int64_t ActionCosts::of(ActionKind kind) const
{
  switch (kind) {
    case ActionKind::forward:
      return forward;
    case ActionKind::backward:
      return again + backward_input + backward_weights;
    case ActionKind::backward_input:
      return again + backward_input;
    case ActionKind::backward_weights:
      return again + backward_weights;
  }
  return 0;
}

std::int64_t TimedSchedule::busy(int rank) const
{
  const std::vector<TimedAction>& own = actions.at(static_cast<std::size_t>(rank));
  return std::accumulate(own.begin(), own.end(), std::int64_t{0},
                         [](std::int64_t sum, const TimedAction& timed) { return sum + timed.end - timed.begin; });
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

/// An action and its place in the lists, for errors.
std::string place(const PipelineSchedule& schedule, int rank, std::size_t number)
{
  return fmt::format("rank {}, action {}, {}", rank, number,
                     describe(schedule.actions[static_cast<std::size_t>(rank)][number]));
}

// ---- The work of one rank -------------------------------------------------------------------------------------------

/// Goes through a rank's list, and records which actions are done and how many activations are kept.
class OwnWork {
 public:
  OwnWork(const PipelineSchedule& schedule, int rank)
      : schedule_(schedule),
        rank_(rank),
        max_in_flight_(schedule.max_in_flight[static_cast<std::size_t>(rank)]),
        trains_(std::any_of(schedule.max_in_flight.begin(), schedule.max_in_flight.end(),
                            [](int most) { return most > 0; })),
        done_(static_cast<std::size_t>(schedule.micro_batches * schedule.virtual_stages))
  {
  }

  /// Refuses a list that is not the work of this rank, or that has more or fewer than max_in_flight in flight.
  /// @return  the most activations that are kept at once.
  int check_list()
  {
    const std::vector<Action>& list = schedule_.actions[static_cast<std::size_t>(rank_)];
    std::optional<std::size_t> one_too_many;
    for (std::size_t number = 0; number < list.size(); ++number) {
      if (const std::string why = objection(list[number]); !why.empty()) refuse(number, why);
      note(list[number]);
      if (kept_ > max_in_flight_ && !one_too_many) one_too_many = number;
    }
    check_complete();
    if (one_too_many)
      refuse(*one_too_many,
             fmt::format("it is one too many: the rank holds the activations of at most {}", max_in_flight_));
    if (most_ < max_in_flight_)
      refuse(first_backward(list),
             fmt::format("its warm-up is short: the rank holds the activations of {} at most, and could hold {}",
                         most_, max_in_flight_));
    return most_;
  }

 private:
  /// Passes of one micro-batch through one stage that are done.
  struct Done {
    bool forward = false, input = false, weights = false;  // F, B, W
  };

  Done& done(int micro_batch, int stage)
  {
    return done_[static_cast<std::size_t>(micro_batch * schedule_.virtual_stages + stage / schedule_.ranks)];
  }

  [[noreturn]] void refuse(std::size_t number, const std::string& why) const
  {
    throw Error(fmt::format("{}: {}", place(schedule_, rank_, number), why));
  }

  /// Why an action cannot be the next one; empty if it can.
  std::string objection(const Action& action)
  {
    if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches)
      return fmt::format("there are {} micro-batches", schedule_.micro_batches);
    if (action.stage < 0 || action.stage >= schedule_.stages())
      return fmt::format("there are {} stages", schedule_.stages());
    if (schedule_.rank_of(action.stage) != rank_)
      return fmt::format("that stage is on rank {}", schedule_.rank_of(action.stage));
    const Done& before = done(action.micro_batch, action.stage);
    const bool gives_input = action.kind == ActionKind::backward || action.kind == ActionKind::backward_input;
    const bool gives_weights = action.kind == ActionKind::backward || action.kind == ActionKind::backward_weights;
    if ((action.kind == ActionKind::forward && before.forward) || (gives_input && before.input) ||
        (gives_weights && before.weights))
      return "it has been done before";
    if (action.kind == ActionKind::forward) return "";
    if (!trains_) return "a schedule with no micro-batch in flight keeps no activations for a backward pass";
    if (!before.forward) return "its forward pass has not been done";
    if (!gives_input && !before.input) return "the gradient of its input has not been computed";
    return "";
  }

  /// Records an action as done, and counts the activations that are kept.
  void note(const Action& action)
  {
    Done& now = done(action.micro_batch, action.stage);
    if (action.kind == ActionKind::forward) {
      now.forward = true;
      if (trains_) most_ = std::max(most_, ++kept_);
      return;
    }
    now.input = now.input || action.kind != ActionKind::backward_weights;
    now.weights = now.weights || action.kind != ActionKind::backward_input;
    if (now.weights) --kept_;
  }

  /// Refuses a list in which an action is missing.
  void check_complete()
  {
    const auto missing = [&](ActionKind kind, int micro_batch, int stage) {
      throw Error(fmt::format("rank {}: {} is missing", rank_, describe({kind, micro_batch, stage})));
    };
    for (int i = 0; i < schedule_.micro_batches; ++i)
      for (int stage = rank_; stage < schedule_.stages(); stage += schedule_.ranks) {
        const Done& all = done(i, stage);
        if (!all.forward) missing(ActionKind::forward, i, stage);
        if (trains_ && !all.input) missing(ActionKind::backward, i, stage);
        if (trains_ && !all.weights) missing(ActionKind::backward_weights, i, stage);
      }
  }

  static std::size_t first_backward(const std::vector<Action>& list)
  {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [](const Action& action) { return action.kind != ActionKind::forward; });
    return static_cast<std::size_t>(found - list.begin());
  }

  const PipelineSchedule& schedule_;
  int rank_, max_in_flight_;
  bool trains_;  // false: forward passes only
  std::vector<Done> done_;
  int kept_ = 0, most_ = 0;
};

// ---- The order of messages ------------------------------------------------------------------------------------------

/// Whether an action receives a message: rows, except in the first stage; or a gradient, except in the last one.
bool receives(const PipelineSchedule& schedule, const Action& action)
{
  if (action.kind == ActionKind::forward) return action.stage > 0;
  return action.kind != ActionKind::backward_weights && action.stage < schedule.stages() - 1;
}

/// Whether an action sends its result.
bool sends(const PipelineSchedule& schedule, const Action& action)
{
  if (action.kind == ActionKind::forward) return action.stage < schedule.stages() - 1;
  return action.kind != ActionKind::backward_weights && action.stage > 0;
}

/// The messages that a rank sends or receives in one direction.
struct MessageList {
  std::vector<std::pair<int, int>> what;  ///< micro-batch and the stage that receives it
  std::vector<std::size_t> numbers;       ///< of the actions
};

/// @param forwards  true: rows; false: gradients.
/// @param sent      true: messages that the rank sends; false: those that it receives.
MessageList messages_of(const PipelineSchedule& schedule, int rank, bool forwards, bool sent)
{
  MessageList messages;
  const std::vector<Action>& list = schedule.actions[static_cast<std::size_t>(rank)];
  for (std::size_t number = 0; number < list.size(); ++number) {
    const Action& action = list[number];
    if ((action.kind == ActionKind::forward) != forwards) continue;
    if (!(sent ? sends(schedule, action) : receives(schedule, action))) continue;
    const int receiver = action.stage + (sent ? (forwards ? 1 : -1) : 0);
    messages.what.emplace_back(action.micro_batch, receiver);
    messages.numbers.push_back(number);
  }
  return messages;
}

/// Refuses messages from a rank to its neighbour that are sent in another order than the neighbour needs them.
void check_order(const PipelineSchedule& schedule, int from, bool forwards)
{
  const int p = schedule.ranks, to = (from + (forwards ? 1 : p - 1)) % p;
  const MessageList sent = messages_of(schedule, from, forwards, true);
  const MessageList wanted = messages_of(schedule, to, forwards, false);
  const auto [it, other] =
      std::mismatch(wanted.what.begin(), wanted.what.end(), sent.what.begin(), sent.what.end());
  if (it == wanted.what.end()) return;
  const auto k = static_cast<std::size_t>(it - wanted.what.begin());
  throw Error(
      fmt::format("{}: what arrives then is what rank {} sends in its action {}, of micro-batch {} for stage {}",
                  place(schedule, to, wanted.numbers[k]), from, sent.numbers[k], other->first, other->second));
}

// ---- Carried out ----------------------------------------------------------------------------------------------------

/// Simulation of all ranks.
class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const std::vector<ActionCosts>& costs)
      : schedule_(schedule), costs_(costs), forward_(passes()), backward_(passes())
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
  std::size_t passes() const { return static_cast<std::size_t>(schedule_.micro_batches * schedule_.stages()); }

  /// Time at which a stage has computed a micro-batch's output, or the gradient of its input; empty before that.
  std::optional<std::int64_t>& arrival(bool forwards, int micro_batch, int stage)
  {
    return (forwards ? forward_ : backward_)[static_cast<std::size_t>(micro_batch * schedule_.stages() + stage)];
  }

  /// Runs a rank's actions until one lacks its input; returns whether any ran.
  bool advance(int rank)
  {
    const std::vector<Action>& list = schedule_.actions[static_cast<std::size_t>(rank)];
    std::vector<TimedAction>& timed = timed_.actions[static_cast<std::size_t>(rank)];
    const std::size_t before = timed.size();
    while (timed.size() < list.size()) {
      const Action& action = list[timed.size()];
      const bool forwards = action.kind == ActionKind::forward;
      std::int64_t begin = timed.empty() ? 0 : timed.back().end;
      if (receives(schedule_, action)) {
        const auto& there = arrival(forwards, action.micro_batch, action.stage + (forwards ? -1 : 1));
        if (!there) break;
        begin = std::max(begin, *there);
      }
      const std::int64_t end = begin + costs_[static_cast<std::size_t>(action.stage)].of(action.kind);
      if (sends(schedule_, action)) arrival(forwards, action.micro_batch, action.stage) = end;
      timed.push_back({action, begin, end});
      timed_.length = std::max(timed_.length, end);
    }
    return timed.size() > before;
  }

  /// Refuses a schedule that ends in a deadlock: some ranks have not reached the end of their lists.
  void check_no_rank_waits() const
  {
    std::vector<std::string> waiting;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const std::vector<Action>& list = schedule_.actions[static_cast<std::size_t>(rank)];
      const std::size_t number = timed_.actions[static_cast<std::size_t>(rank)].size();
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
  std::vector<std::optional<std::int64_t>> forward_, backward_;  // by micro-batch and stage
  TimedSchedule timed_;
};

}  // namespace

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
  for (int rank = 0; rank < schedule.ranks; ++rank) in_flight.push_back(OwnWork(schedule, rank).check_list());
  for (int rank = 0; rank < schedule.ranks; ++rank)
    for (const bool forwards : {true, false}) check_order(schedule, rank, forwards);
  TimedSchedule timed = Simulation(schedule, costs).run();
  timed.in_flight = in_flight;
  return timed;
}

TimedSchedule check_schedule(const PipelineSchedule& schedule, const ActionCosts& costs)
{
  const auto stages = static_cast<std::size_t>(std::max(schedule.stages(), 0));
  return check_schedule(schedule, std::vector<ActionCosts>(stages, costs));
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
