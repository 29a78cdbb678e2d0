// The elements that each rank of lesson 13's mesh counts, so that each parameter of the model counts once in a replica.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lessons/parallel/mesh/sharding_mesh.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const ModelConfig config = tiny_config(2, 4, 32, 6);

/// How often each parameter of the model is counted by s t ranks.
class Counts {
 public:
  void add(const ParameterTable& table, const std::vector<Range>& counted)
  {
    for (const Parameter& p : table.entries())
      for (const Slab& slab : table.slabs(p))
        for (std::int64_t row = 0; row < slab.rows.count; ++row)
          for (std::int64_t column = 0; column < slab.columns.count; ++column) {
            const std::int64_t width = p.stored[p.stored.rank() - 1];
            const std::int64_t at =
                p.elements.first + (slab.stored_row + row) * width + slab.stored_column + column;
            const auto times = std::count_if(counted.begin(), counted.end(),
                                             [&](const Range& range) { return range.contains(at); });
            count(p, slab.rows.first + row, slab.columns.first + column) += static_cast<int>(times);
          }
  }
  /// Padding of the vocabulary is counted nowhere.
  bool all_are_one() const
  {
    return std::count(counts_.begin(), counts_.end(), 1) == config.parameters() &&
           std::count(counts_.begin(), counts_.end(), 0) == table_.elements() - config.parameters();
  }

 private:
  int& count(const Parameter& p, std::int64_t row, std::int64_t column)
  {
    const Parameter& whole = table_.entries()[static_cast<std::size_t>(p.number)];
    return counts_[static_cast<std::size_t>(whole.elements.first + row * p.shape[p.shape.rank() - 1] + column)];
  }

  ParameterTable table_{config};
  std::vector<int> counts_ = std::vector<int>(static_cast<std::size_t>(table_.elements()));
};

}  // namespace

TEST_CASE("counted_elements: over the ranks of a replica each parameter of the model counts once")
{
  for (const int t : {1, 2, 4})
    for (const int s : {1, 2, 3})
      for (const UnitKind unit : {UnitKind::block, UnitKind::branch, UnitKind::model})
        for (const std::int64_t persist : {0, 64}) {
          INFO("t = " << t << ", s = " << s << ", persist = " << persist);
          Counts counts;
          for (int tp = 0; tp < t; ++tp) {
            const ParameterTable table(config, {tp, t}, {0, -1}, persist);
            const std::vector<BucketShard> shards = make_bucket_shards(make_fsdp_units(table, unit), s);
            for (int rank = 0; rank < s; ++rank)
              counts.add(table, counted_elements(table, {tp, t}, shards_of(rank, shards)));
          }
          CHECK(counts.all_are_one());
        }
}

TEST_CASE("counted_elements: are within a rank's shards, and none of them is empty")
{
  for (int tp = 0; tp < 4; ++tp) {
    const ParameterTable table(config, {tp, 4});
    const std::vector<Range> own = shards_of(1, make_bucket_shards(make_fsdp_units(table, UnitKind::block), 3));
    for (const Range& range : counted_elements(table, {tp, 4}, own)) {
      CHECK(!range.empty());
      CHECK(std::any_of(own.begin(), own.end(),
                        [&](const Range& shard) { return intersect(shard, range) == range; }));
    }
  }
}
