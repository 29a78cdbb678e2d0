#include "lessons/13_mesh_zero3/tiered_shards.hpp"

#include <cstddef>
#include <span>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/collectives/collectives.hpp"
#include "common/messages/job_report.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

std::vector<Range> undivided_elements(const ParameterTable& table, const std::vector<Range>& own)
{
  std::vector<Range> ranges;
  for (const Range& shard : own)
    for (const Parameter& p : table.entries())
      if (const Range both = intersect(shard, p.elements); p.split == Split::none && !both.empty())
        ranges.push_back(both);
  return ranges;
}

void check_same(Report& report, const std::string& what, Group& axis, const HeldShards& held)
{
  std::string hash;
  const auto hash_of = [](const std::string& text) {
    return fmt::format("{:016x}", fast_hash(std::as_bytes(std::span(text))));
  };
  held.for_each(Access::read, [&](const Shard& some, Stream& stream) {
    hash = hash_of(hash + replica_hash(stream, some.parameters));
  });
  const bool same = on_all_ranks(same_on_all_ranks(hash, axis));
  report.check(what, "the same", same ? "the same" : "different", same);
}

void all_reduce_in_queue(const std::vector<Tensor>& tensors, Group& group)
{
  group.follow_compute(false);
  for (const Tensor& tensor : tensors) all_reduce_sum(tensor, group);
  group.follow_compute(true);
}

}  // namespace rankwise
