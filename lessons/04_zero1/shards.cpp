#include "lessons/04_zero1/shards.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "common/digest.hpp"
#include "gpt2/run_report.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t block_elements = 1 << 18;

/// Calls @p work for the elements of each segment, block by block, with room on the device for those of one block.
void for_each_block(const DeviceMemory& memory, const std::vector<Segment>& segments,
                    const std::function<void(const Segment& block, const Tensor& room)>& work)
{
  std::int64_t most = 0;
  for (const Segment& segment : segments) most = std::max(most, segment.elements.count);
  const Buffer buffer(memory, Category::communication, DType::f32, {std::min(most, block_elements)},
                      "a block of what another rank owns");
  for (const Segment& segment : segments)
    for (std::int64_t first = segment.elements.first; first < segment.elements.end(); first += block_elements) {
      const Range elements = intersect({first, block_elements}, segment.elements);
      work({elements, segment.owner}, buffer.tensor().slice({0, elements.count}));
    }
}

}  // namespace

std::string parameter_digest(const DeviceMemory& memory, Stream& stream, const std::vector<Segment>& segments,
                             const std::vector<Shard>& shards, Group& group)
{
  std::vector<Segment> in_order = segments;
  std::sort(in_order.begin(), in_order.end(),
            [](const Segment& a, const Segment& b) { return a.elements.first < b.elements.first; });
  Sha256 digest;
  for_each_block(memory, in_order, [&](const Segment& block, const Tensor& room) {
    if (block.owner == group.rank()) {
      const auto mine = std::find_if(shards.begin(), shards.end(), [&](const Shard& shard) {
        return shard.owned.contains(block.elements.first);
      });
      stream.copy(room, mine->parameters.slice({block.elements.first - mine->owned.first, block.elements.count}));
    }
    broadcast(room, block.owner, group);
    const std::vector<float> values = to_host<float>(stream, room);
    for (const Parameter& p : shards.front().table.entries()) {
      const Range natural = intersect({p.elements.first, p.shape.elements()}, block.elements);  // without padding
      digest.update(std::as_bytes(std::span(values).subspan(
          static_cast<std::size_t>(natural.empty() ? 0 : natural.first - block.elements.first),
          static_cast<std::size_t>(natural.count))));
    }
  });
  return digest.hex();
}

ParameterDeviation parameter_deviation(const DeviceMemory& memory, Stream& stream,
                                       const std::vector<Segment>& segments,
                                       const std::vector<std::vector<float>>& parameters,
                                       std::span<const float> reference, Group& group)
{
  const std::vector<Range> own = segments_of(group.rank(), segments);
  ParameterDeviation sums;
  for_each_block(memory, segments, [&](const Segment& block, const Tensor& room) {
    const auto first = static_cast<std::size_t>(block.elements.first);
    if (group.rank() == 0)
      stream.copy(room, Tensor(const_cast<float*>(reference.data() + first), DType::f32, {block.elements.count}));
    broadcast(room, 0, group);
    if (block.owner != group.rank()) return;
    const auto mine = std::find_if(own.begin(), own.end(),
                                   [&](const Range& segment) { return segment.contains(block.elements.first); });
    const std::span<const float> values = parameters[static_cast<std::size_t>(mine - own.begin())];
    const std::vector<float> expected = to_host<float>(stream, room);
    const ParameterDeviation of_block = parameter_deviation(
        values.subspan(first - static_cast<std::size_t>(mine->first), expected.size()), expected);
    sums.squared_difference += of_block.squared_difference;
    sums.squared_norm += of_block.squared_norm;
  });
  all_reduce_sum(sums.squared_difference, group);
  all_reduce_sum(sums.squared_norm, group);
  return sums;
}

void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const std::vector<Shard>& shards, const std::vector<Tensor>& gradients, Group& group)
{
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) return;
  const ParameterTable& table = shards.front().table;
  const std::int64_t none = 2 * table.elements();
  std::int64_t first = none;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::int64_t begin = shards[i].owned.first;
    if (const auto at = kernels.first_not_finite(shards[i].parameters)) first = std::min(first, begin + *at);
    if (const auto at = kernels.first_not_finite(gradients[i]))
      first = std::min(first, table.elements() + begin + *at);
  }
  const std::vector<std::int64_t> of_all = all_gather(first, group);
  first = *std::min_element(of_all.begin(), of_all.end());
  end_not_finite(step, loss, gradient_norm, table, first == none ? std::nullopt : std::optional(first));
}

}  // namespace rankwise
