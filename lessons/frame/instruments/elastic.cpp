#include "lessons/frame/instruments/elastic.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/files/output_file.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/watchdog/watchdog.hpp"

namespace rankwise {

namespace {

/// The ranges of every rank.
std::vector<std::vector<Range>> ranges_of_all(const std::vector<Range>& own)
{
  std::string bytes(own.size() * sizeof(Range), '\0');
  std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<std::vector<Range>> all;
  for (const std::string& text : gather_texts(Communicator::world(), bytes)) {
    std::vector<Range>& of_rank = all.emplace_back(text.size() / sizeof(Range));
    std::memcpy(of_rank.data(), text.data(), text.size());
  }
  return all;
}

/// The first of these ranges with this element; null if there is none.
const Range* range_with(const std::vector<Range>& ranges, std::int64_t element)
{
  const auto found = std::ranges::find_if(ranges, [&](const Range& range) { return range.contains(element); });
  return found == ranges.end() ? nullptr : &*found;
}

/// Weights, first moments and second moments.
std::array<Tensor, 3> tensors_of(const Shard& shard)
{
  return {shard.parameters, shard.first_moments, shard.second_moments};
}

/// Some elements of one of the values of the shard that has them.
Tensor part_of(std::vector<KeptShard>& shards, Range elements, std::size_t value)
{
  KeptShard& shard =
      *std::ranges::find_if(shards, [&](const KeptShard& kept) { return kept.elements.contains(elements.first); });
  float* const first = shard.values[value].data() + (elements.first - shard.elements.first);
  return {first, DType::f32, {elements.count}};
}

}  // namespace

std::optional<std::vector<Move>> plan_moves(const std::vector<std::vector<Range>>& kept,
                                            const std::vector<std::vector<Range>>& wanted)
{
  std::vector<Move> moves;
  for (std::size_t to = 0; to < wanted.size(); ++to)
    for (const Range& range : wanted[to])
      for (std::int64_t at = range.first; at < range.end();) {
        std::size_t from = to;
        const Range* source = range_with(kept[to], at);
        for (std::size_t rank = 0; source == nullptr && rank < kept.size(); ++rank) {
          source = range_with(kept[rank], at);
          from = rank;
        }
        if (source == nullptr) return std::nullopt;
        const std::int64_t end = std::min(range.end(), source->end());
        moves.push_back({static_cast<int>(from), static_cast<int>(to), {at, end - at}});
        at = end;
      }
  return moves;
}

// ---- Copies ---------------------------------------------------------------------------------------------------------

Copies::Copies(Run& run, const HeldShards& held, int count)
    : run_(run),
      held_(held),
      count_(std::min(count, run.session.ranks() - 1)),
      group_("copies", Communicator::world(), run.group_setup())
{
  const std::vector<std::vector<Range>> of_all = ranges_of_all(held.ranges);
  const int N = group_.ranks();
  for (int i = 1; i <= count_; ++i) {
    const int owner = (group_.rank() - i + N) % N;
    for (const Range& elements : of_all[static_cast<std::size_t>(owner)]) {
      const Shape shape{elements.count};
      copies_.push_back(
          {owner,
           elements,
           decay_runs(held.table, elements),
           {run.memory, Category::optimizer, DType::f32, shape, "copied weights"},
           {run.memory, Category::optimizer, DType::f32, shape, "copied first moments"},
           {run.memory, Category::optimizer, DType::f32, shape, "copied second moments"},
           {run.memory, Category::communication, run.options.gradients, shape, "gradient of a copy"}});
    }
  }
}

/// Sends a tensor of each of this rank's shards to its copies, and receives those of the shards that are copied here.
void Copies::exchange(const std::vector<Tensor>& own, const Buffer Copy::*received)
{
  const int N = group_.ranks();
  std::vector<Transfer> transfers;
  for (int i = 1; i <= count_; ++i)
    for (const Tensor& tensor : own)
      transfers.push_back({Transfer::Direction::send, tensor, (group_.rank() + i) % N});
  for (const Copy& copy : copies_)
    transfers.push_back({Transfer::Direction::receive, (copy.*received).tensor(), copy.owner});
  group_.transport().finish(group_.transport().start(transfers));
}

void Copies::fill()
{
  if (count_ > 0) {
    std::array<std::vector<Tensor>, 3> own;
    held_.for_each(Access::read, [&](const Shard& shard, Stream&) {
      const std::array<Tensor, 3> tensors = tensors_of(shard);
      for (std::size_t i = 0; i < tensors.size(); ++i) own[i].push_back(tensors[i]);
    });
    exchange(own[0], &Copy::weights);
    exchange(own[1], &Copy::first_moments);
    exchange(own[2], &Copy::second_moments);
  }
  agree();
}

void Copies::commit(const std::vector<Tensor>& gradients, const AdamWStep& step)
{
  if (count_ > 0) {
    const auto counted = run_.count("copies");
    const auto span = run_.time.span(Work::exposed, "sending gradients to copies");
    exchange(gradients, &Copy::gradient);
  }
  // From here on every living rank makes the update, even if others die: it has all that it takes.
  agree();
  for (const Copy& copy : copies_)
    update_adamw(run_.kernels, copy.decays, copy.elements,
                 {copy.weights.tensor(), copy.first_moments.tensor(), copy.second_moments.tensor(),
                  copy.gradient.tensor(), Tensor()},
                 step, run_.options.adamw.weight_decay);
}

void Copies::agree() const
{
  const auto span = run_.time.span(Work::exposed, "agreeing that all ranks are alive");
  agree_on(0);
}

std::vector<KeptShard> Copies::kept() const
{
  std::vector<KeptShard> all;
  const auto keep = [&](Range elements, const std::array<Tensor, 3>& tensors, Stream& stream) {
    KeptShard& shard = all.emplace_back(KeptShard{elements, {}});
    for (std::size_t i = 0; i < tensors.size(); ++i) shard.values[i] = to_host<float>(stream, tensors[i]);
  };
  held_.for_each(Access::read,
                 [&](const Shard& shard, Stream& stream) { keep(shard.owned, tensors_of(shard), stream); });
  for (const Copy& copy : copies_)
    keep(copy.elements, {copy.weights.tensor(), copy.first_moments.tensor(), copy.second_moments.tensor()},
         *run_.stream);
  return all;
}

// ---- Survivors ------------------------------------------------------------------------------------------------------

int Survivors::run(Session& session, Report& report, const LessonOptions& options,
                   const std::function<void()>& check, const std::function<int()>& train)
{
  while (true) try {
      return train();
    } catch (const RankFailure& failure) {
      if (!options.elastic) throw;
      go_on(session, report, failure);
      check();
      if (session.rank() == 0 && !options.checkpoint.empty()) remove_temporary(options.checkpoint);  // begun before
    }
}

void Survivors::keep(const Copies* copies, std::int64_t updates, std::int64_t before, const StepReport& made)
{
  if (copies != nullptr) {
    kept_ = copies->kept();
    updates_ = updates;
  }
  if (updates - before > reached.steps()) reached.last = made;
}

/// Agrees with the other living ranks that this failure has happened; together they become the ranks of the job.
void Survivors::go_on(Session& session, Report& report, const RankFailure& failure)
{
  if (!since_) since_.emplace();
  // A rank that waits for an agreement gets its answer, so that all ranks have made equally many.
  if (!failure.agreed()) give_up_agreement();
  while (!shrink(session)) give_up_agreement();
  report.print_here(session.rank() == 0);
}

/// One attempt to make the living ranks those of the job; false if another one has died meanwhile.
bool Survivors::shrink(Session& session)
{
  const int ranks = session.ranks();
  try {
    if (const std::vector<int> dead = session.shrink(); !dead.empty())
      died_ += fmt::format("{}rank{} {} of {}", died_.empty() ? "" : ", ", dead.size() == 1 ? "" : "s",
                           fmt::join(dead, " and "), ranks);
    session.find_machines();
    watch_survivors();
    return true;
  } catch (const RankFailure&) {
    return false;
  }
}

std::optional<std::int64_t> Survivors::restore(Run& run, const HeldShards& held)
{
  std::vector<Range> own;
  for (const KeptShard& shard : kept_) own.push_back(shard.elements);
  const std::vector<std::vector<Range>> kept = ranges_of_all(own), wanted = ranges_of_all(held.ranges);
  if (std::ranges::all_of(kept, [](const std::vector<Range>& ranges) { return ranges.empty(); }))
    return std::nullopt;
  const std::optional<std::vector<Move>> moves = plan_moves(kept, wanted);
  if (!moves)
    throw UserError(
        fmt::format("{} died in step {}, and with them a shard of the model and all of its copies.", died_,
                    reached.made),
        fmt::format("More copies survive more deaths at once: --copies={}. With --checkpoint the run can "
                    "be resumed from its last checkpoint.",
                    run.options.copies + 1));
  moved_bytes_ = 0;
  for (const Move& move : *moves)
    if (move.from != move.to) moved_bytes_ += 3 * bytes_of(DType::f32) * move.elements.count;
  receive(run, held, *moves);
  return updates_;
}

/// Carries out the moves, and fills the shards with the elements that arrive.
void Survivors::receive(Run& run, const HeldShards& held, const std::vector<Move>& moves)
{
  std::vector<KeptShard> filled;
  for (const Range& range : held.ranges) {
    KeptShard& shard = filled.emplace_back(KeptShard{range, {}});
    for (std::vector<float>& values : shard.values) values.resize(static_cast<std::size_t>(range.count));
  }
  Group group("survivors", Communicator::world(), run.group_setup());
  std::vector<Transfer> transfers;
  for (const Move& move : moves)
    for (std::size_t value = 0; value < 3; ++value) {
      const bool sends = move.from == group.rank(), receives = move.to == group.rank();
      if (sends && receives)
        run.stream->copy(part_of(filled, move.elements, value), part_of(kept_, move.elements, value));
      else if (sends)
        transfers.push_back({Transfer::Direction::send, part_of(kept_, move.elements, value), move.to});
      else if (receives)
        transfers.push_back({Transfer::Direction::receive, part_of(filled, move.elements, value), move.from});
    }
  group.transport().finish(group.transport().start(transfers));
  auto next = filled.begin();
  held.for_each(Access::write, [&](const Shard& shard, Stream& stream) {
    const std::array<Tensor, 3> tensors = tensors_of(shard);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      stream.copy(tensors[i], Tensor(next->values[i].data(), DType::f32, {shard.owned.count}));
    stream.synchronise();
    ++next;
  });
}

void Survivors::done(Report& report, const Session& session)
{
  if (!since_) return;
  report.comment(fmt::format("{} died in step {}; {} on after {:.3f} s, having moved {} bytes", died_, reached.made,
                             session.ranks() == 1 ? "1 rank goes" : fmt::format("{} ranks go", session.ranks()),
                             since_->seconds(), group_digits(moved_bytes_)));
  report.json()["recoveries"].push_back({{"died", died_},
                                         {"step", reached.made},
                                         {"ranks", session.ranks()},
                                         {"seconds", since_->seconds()},
                                         {"moved_bytes", moved_bytes_}});
  since_.reset();
  died_.clear();
  kept_.clear();
  updates_.reset();
}

void add_copies(Costs& costs, const LessonOptions& options, RankOf rank,
                const std::vector<std::vector<std::int64_t>>& shards)
{
  const int k = std::min(options.copies, rank.ranks - 1);
  const std::int64_t gradient = bytes_of(options.gradients);
  constexpr std::int64_t state = 3 * bytes_of(DType::f32);  // a weight and two moments
  for (TierBytes* bytes : {&costs.kept, &costs.most})
    for (int i = 1; i <= k; ++i)
      for (const std::int64_t n : shards[static_cast<std::size_t>((rank.rank - i + rank.ranks) % rank.ranks)]) {
        in_tier(Tier::device, *bytes)[Category::optimizer] += state * n;
        in_tier(Tier::device, *bytes)[Category::communication] += gradient * n;
      }
  Traffic sent;
  for (const std::int64_t n : shards[static_cast<std::size_t>(rank.rank)])
    if (n > 0) sent += Traffic{.messages = k, .bytes = k * gradient * n};
  costs.sent.push_back({"copies", "copies in a step", sent, "copies times the gradients of this rank's shards"});
}

}  // namespace rankwise
