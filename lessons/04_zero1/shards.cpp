#include "lessons/04_zero1/shards.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "common/digest.hpp"
#include "common/in_turn.hpp"
#include "gpt2/run_report.hpp"

namespace rankwise {

namespace {

/// Elements of one tensor and of one owner, as many as are sent at once.
struct Block {
  Range elements;       // of the table's flat vector
  std::int64_t before;  // elements in front of them, where tensor stands behind tensor in the table's order
  int owner;
};

/// Calls @p work for all elements of a table, block by block in its order, with room for those of the block.
void for_each_block(const ParameterTable& table, std::vector<Segment> segments, const Tensor& room,
                    const std::function<void(const Block& block, const Tensor& values)>& work)
{
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.elements.first < b.elements.first; });
  std::int64_t before = 0;
  for (const Parameter& p : table.entries()) {
    for (const Segment& segment : segments) {
      const Range shared = intersect(p.elements, segment.elements);
      for (std::int64_t first = shared.first; first < shared.end(); first += room.elements()) {
        const Range elements = intersect({first, room.elements()}, shared);
        work({elements, before + first - p.elements.first, segment.owner}, room.slice({0, elements.count}));
      }
    }
    before += p.elements.count;
  }
}

/// The number of elements in front of @p element, where range stands behind range.
std::int64_t place_in(const std::vector<Range>& ranges, std::int64_t element)
{
  std::int64_t before = 0;
  for (const Range& range : ranges) {
    if (range.contains(element)) return before + element - range.first;
    before += range.count;
  }
  throw Error("an element is in none of the ranges");
}

/// Some of the values that lie on the host.
std::span<const float> part_of(std::span<const float> values, Range part)
{
  return values.subspan(static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.count));
}

}  // namespace

std::string parameter_digest(const std::vector<Segment>& segments, const std::vector<Shard>& shards,
                             const Tensor& room, Group& group)
{
  const auto copy_own = [&](Range elements, const Tensor& to) {
    for (const Shard& mine : shards)
      if (mine.owned.contains(elements.first))
        group.compute().copy(to, mine.parameters.slice({elements.first - mine.owned.first, elements.count}));
  };
  return parameter_digest(shards.front().table, segments, copy_own, room, group);
}

std::string parameter_digest(const ParameterTable& table, const std::vector<Segment>& segments,
                             const CopyOwn& copy_own, const Tensor& room, Group& group)
{
  Sha256 digest;
  for_each_block(table, segments, room, [&](const Block& block, const Tensor& values) {
    if (block.owner == group.rank()) copy_own(block.elements, values);
    broadcast(values, block.owner, group);
    const std::vector<float> host = to_host<float>(group.compute(), values);
    for (const Parameter& p : table.entries()) {
      const Range natural = intersect({p.elements.first, p.shape.elements()}, block.elements);  // without padding
      if (natural.empty()) continue;
      digest.update(std::as_bytes(part_of(host, {natural.first - block.elements.first, natural.count})));
    }
  });
  return digest.hex();
}

std::vector<float> to_host(Stream& stream, const std::vector<Shard>& shards)
{
  std::vector<float> all;
  for (const Shard& shard : shards) {
    const std::vector<float> values = to_host<float>(stream, shard.parameters);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

ReferenceRun reference_run_on_rank_0(const Session& session, const TrainingOptions& options,
                                     const std::shared_ptr<const TokenSource>& text)
{
  ReferenceRun run;
  in_turn(session, [&] {
    if (session.rank() == 0) run = reference_run(options, text);
  });
  return run;
}

ParameterDeviation parameter_deviation(const ParameterTable& table, const std::vector<Segment>& segments,
                                       std::span<const float> parameters, std::span<const float> reference,
                                       const Tensor& room, Group& group)
{
  ParameterDeviation sums;
  for_each_block(table, segments, room, [&](const Block& block, const Tensor& values) {
    if (group.rank() == 0) {
      const std::span<const float> expected = part_of(reference, {block.before, block.elements.count});
      group.compute().copy(values, Tensor(const_cast<float*>(expected.data()), DType::f32, {block.elements.count}));
    }
    broadcast(values, 0, group);
    if (block.owner != group.rank()) return;
    const std::int64_t first = place_in(segments_of(group.rank(), segments), block.elements.first);
    const ParameterDeviation of_block = parameter_deviation(part_of(parameters, {first, block.elements.count}),
                                                            to_host<float>(group.compute(), values));
    sums.squared_difference += of_block.squared_difference;
    sums.squared_norm += of_block.squared_norm;
  });
  all_reduce_sum(sums.squared_difference, group);
  all_reduce_sum(sums.squared_norm, group);
  return sums;
}

void write_in_turn(const Session& session, const std::string& path, Stream& stream,
                   const std::vector<Shard>& shards)
{
  in_turn(session, [&] {
    for (const Shard& shard : shards) write_checkpoint(path, stream, shard);
  });
}

}  // namespace rankwise
