// The elements that each rank of lesson 10's mesh owns, so that each parameter of the model counts once.

#include <algorithm>
#include <vector>

#include "tests/catch.hpp"
#include "tests/lessons/10/mesh_plans.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// The place among all elements of the model, padding left out, of each element of a part's table; -1 for padding.
std::vector<std::int64_t> places_in_model(const ModelConfig& config, const ParameterTable& table)
{
  const ParameterTable whole(config);
  std::vector<std::int64_t> first{0};  // of each of its tensors
  for (const Parameter& p : whole.entries()) first.push_back(first.back() + p.shape.elements());
  std::vector<std::int64_t> places(static_cast<std::size_t>(table.elements()), -1);
  for (const Parameter& p : table.entries()) {
    const std::int64_t columns = p.shape[p.shape.rank() - 1], stored = p.stored[p.stored.rank() - 1];
    for (const Slab& slab : table.slabs(p))
      for (std::int64_t r = 0; r < slab.rows.count; ++r)
        for (std::int64_t c = 0; c < slab.columns.count; ++c)
          places[static_cast<std::size_t>(p.elements.first + (slab.stored_row + r) * stored + slab.stored_column +
                                          c)] =
              first[static_cast<std::size_t>(p.number)] + (slab.rows.first + r) * columns + slab.columns.first + c;
  }
  return places;
}

/// Calls f with the plan of each rank and with each of its ranges.
void for_each_range(const MeshCase& c, const std::function<void(const MeshPlan&, Range)>& f)
{
  for_each_place(c.layout, [&](const MeshCoordinates& place) {
    const MeshPlan plan = mesh_plan(c.layout, place, c.options);
    for (const Range& range : plan.ranges()) f(plan, range);
  });
}

}  // namespace

TEST_CASE("MeshPlan::counted: over all ranks each parameter of the model counts once")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    std::vector<int> counts(static_cast<std::size_t>(c.options.config.parameters()));
    for_each_range(c, [&](const MeshPlan& plan, Range range) {
      if (!c.options.zero && plan.place.dp != 0) return;  // each replica counts all, and their sum is not taken
      const std::vector<std::int64_t> places = places_in_model(c.options.config, plan.pipeline.table);
      for (const Range& counted : plan.counted(range))
        for (std::int64_t i = counted.first; i < counted.end(); ++i)
          if (const std::int64_t at = places[static_cast<std::size_t>(i)]; at >= 0)
            ++counts[static_cast<std::size_t>(at)];
    });
    CHECK(std::ranges::count(counts, 1) == c.options.config.parameters());
  }
}

TEST_CASE("MeshPlan::counted: without shared optimizer states each replica counts the same")
{
  const MeshPlanOptions options{.zero = false};
  const Layout layout{.dp = 2, .tp = 2, .pp = 2};
  for (int pp = 0; pp < 2; ++pp)
    for (int tp = 0; tp < 2; ++tp) {
      const MeshPlan one = mesh_plan(layout, {.dp = 0, .tp = tp, .pp = pp}, options);
      const MeshPlan other = mesh_plan(layout, {.dp = 1, .tp = tp, .pp = pp}, options);
      for (const Range& range : one.ranges()) CHECK(one.counted(range) == other.counted(range));
    }
}

TEST_CASE("MeshPlan::counted: nothing of the copy of the token embedding, everything of the first stage's")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    for_each_range(c, [&](const MeshPlan& plan, Range range) {
      if (range.first != 0) return;
      const std::vector<Range> all = plan.counted(range);
      const bool copy = c.layout.pp > 1 && plan.place.pp == c.layout.pp - 1;
      CHECK(all == (copy ? std::vector<Range>{} : std::vector{plan.updated(range)}));
    });
  }
}

TEST_CASE("MeshPlan::counted: replicated parameters count on tensor-parallel rank 0 only")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    for_each_range(c, [&](const MeshPlan& plan, Range range) {
      if (plan.place.tp == 0) return;
      for (const Range& counted : plan.counted(range))
        for (const Parameter& p : plan.pipeline.table.entries())
          if (p.split == Split::none) CHECK(intersect(counted, p.elements).empty());
    });
  }
}

TEST_CASE("MeshPlan::counted: runs that are not empty, in order, of what the rank updates")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    for_each_range(c, [&](const MeshPlan& plan, Range range) {
      std::int64_t next = plan.updated(range).first;
      for (const Range& counted : plan.counted(range)) {
        CHECK(!counted.empty());
        CHECK(counted.first >= next);
        next = counted.end();
      }
      CHECK(next <= plan.updated(range).end());
    });
  }
}
