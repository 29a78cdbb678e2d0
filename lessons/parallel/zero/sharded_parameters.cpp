#include "lessons/parallel/zero/sharded_parameters.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"

namespace rankwise {

ShardedParameters::ShardedParameters(const DeviceMemory& memory, Stream& stream, CommunicationQueue& queue,
                                     const ParameterTable& table, std::vector<FsdpUnit> units,
                                     std::vector<Range> own, DType type, const GatherOptions& options, bool kept)
    : memory_(memory),
      queue_(queue),
      units_(std::move(units)),
      own_(std::move(own)),
      type_(type),
      gathered_(units_.size()),
      on_its_way_(units_.size()),
      stream_(stream),
      table_(table),
      options_(options)
{
  const Range replicated = table.replicated();
  const std::int64_t sharded = elements_of(own_) - (replicated.empty() ? 0 : own_.back().count);
  kept = kept && !keeps_units();
  if (kept) shards_ = Buffer(memory, Category::parameters, type, {sharded}, "shards of parameters");
  if (!replicated.empty())
    replicated_ = Buffer(memory, Category::parameters, type, {replicated.count}, "replicated parameters");
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    if (keeps_units() && !units_[unit].units.empty())
      gathered_[unit] = Buffer(memory, Category::parameters, type, {units_[unit].elements.count}, "a whole unit");
  own_tensors_ = views_of_shards(kept);
}

std::vector<Tensor> ShardedParameters::views_of_shards(bool kept) const
{
  // BEGIN EXERCISE 06.3
  std::vector<Tensor> views;
  std::int64_t used = 0;  // elements of shards_ that the units so far have taken
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const Range mine = own_[unit], all = units_[unit].elements;
    // A unit that is kept whole has this rank's shard in its place among those of the other ranks.
    const Tensor& whole = units_[unit].units.empty() ? replicated() : gathered_[unit].tensor();
    if (!whole.empty()) {
      views.push_back(whole.slice({mine.first - all.first, mine.count}));
    } else if (kept) {
      views.push_back(shards_.tensor().slice({used, mine.count}));
      used += mine.count;
    } else {
      views.emplace_back();  // stored elsewhere
    }
  }
  return views;
  // END EXERCISE
}

std::vector<Tensor> ShardedParameters::whole() const
{
  std::vector<Tensor> tensors;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].units.empty()) tensors.push_back(replicated());
    if (keeps_units() && !units_[unit].units.empty()) tensors.push_back(gathered_[unit].tensor());
  }
  return tensors;
}

void ShardedParameters::begin(const std::vector<Use>& uses)
{
  check(next_ == uses_.size(), "a micro-batch begins before the previous one has ended");
  uses_ = uses;
  places_ = places_of(units_, uses);
  plan_ = plan_gathers(units_, uses, options_);
  next_ = 0;
}

void ShardedParameters::gather(std::size_t unit)
{
  // BEGIN EXERCISE 06.2
  const Range all = units_[unit].elements;
  gathered_[unit] = Buffer(memory_, Category::parameters, type_, {all.count}, "a gathered unit");
  const Tensor whole = gathered_[unit].tensor();
  stream_.copy(whole.slice({own_[unit].first - all.first, own_[unit].count}), own_tensors_[unit]);
  on_its_way_[unit] = queue_.start(fmt::format("gathering unit {}", units_[unit].units.first),
                                   [whole](Group& world) { all_gather(whole, world); });
  // END EXERCISE
}

std::vector<Tensor> ShardedParameters::use(std::int64_t unit)
{
  // BEGIN EXERCISE 06.4
  check(next_ < uses_.size() && uses_[next_].front() == unit, fmt::format("unit {} is used out of order", unit));
  const std::size_t place = places_[next_];
  if (next_ == 0 || places_[next_ - 1] != place) {
    // First free, so that memory is there; then start the gathers, so that messages travel; then wait for this use.
    for (const std::size_t old : plan_[place].frees) free(old);
    for (const std::size_t coming : plan_[place].gathers) gather(coming);
    for (const std::size_t needed : plan_[place].needs) on_its_way_[needed].wait();
  }
  ++next_;
  return of(unit);
  // END EXERCISE
}

std::vector<Tensor> ShardedParameters::of(std::int64_t unit) const
{
  const auto number = static_cast<int>(unit);
  const Range elements = table_.unit_elements(number);
  if (elements.empty()) return unit_tensors(table_, number, {}, replicated());  // all of its tensors are replicated
  const auto with =
      std::find_if(units_.begin(), units_.end(), [&](const Bucket& bucket) { return bucket.units.contains(unit); });
  const Tensor& whole = gathered_[static_cast<std::size_t>(with - units_.begin())].tensor();
  check(!whole.empty(), fmt::format("unit {} is not gathered", unit));
  return unit_tensors(table_, number, whole.slice({elements.first - with->elements.first, elements.count}),
                      replicated());
}

void ShardedParameters::end()
{
  check(next_ == uses_.size(), "a micro-batch ends before its last use");
  for (std::size_t unit = 0; unit < units_.size() && !keeps_units(); ++unit) free(unit);
}

}  // namespace rankwise
