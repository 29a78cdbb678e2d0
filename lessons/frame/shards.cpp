#include "lessons/frame/shards.hpp"

#include <algorithm>
#include <utility>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/program/session.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t block_elements = 1 << 18;

std::vector<Range> ranges_of(const std::vector<Shard>& shards)
{
  std::vector<Range> ranges;
  for (const Shard& shard : shards) ranges.push_back(shard.owned);
  return ranges;
}

/// Copies the elements that this rank owns from rows @p rows of a whole tensor into @p block, which holds these
/// rows.
/// @param stored  the tensor in this rank's table.
void copy_rows(const HeldShards& owned, const Parameter& stored, Range rows, std::span<float> block)
{
  const std::int64_t width = stored.shape[stored.shape.rank() - 1];
  const std::int64_t stored_width = stored.stored[stored.stored.rank() - 1];
  Range copied{};
  std::vector<float> values;
  for (const Slab& slab : owned.table.slabs(stored)) {
    const Range shared = intersect(rows, slab.rows);
    if (shared.empty()) continue;
    // These rows are contiguous in the flat vector, but some of their columns may belong to other slabs.
    const std::int64_t first_row = slab.stored_row + shared.first - slab.rows.first;
    const Range flat{stored.elements.first + first_row * stored_width, shared.count * stored_width};
    if (flat != copied) {  // q, k and v are slabs of the same rows
      values.assign(static_cast<std::size_t>(flat.count), 0);
      for (const Range& range : owned.ranges)
        if (const Range own = intersect(flat, range); !own.empty())
          owned.copy_parameters(own, Tensor(values.data() + (own.first - flat.first), DType::f32, {own.count}));
      copied = flat;
    }
    for (std::int64_t row = 0; row < shared.count; ++row)
      std::copy_n(values.begin() + row * stored_width + slab.stored_column, slab.columns.count,
                  block.begin() + (shared.first + row - rows.first) * width + slab.columns.first);
  }
}

}  // namespace

HeldShards::HeldShards(std::vector<Shard> shards, Stream& stream) : HeldShards(shards.at(0).table, shards, stream)
{
}

HeldShards::HeldShards(const ParameterTable& parameters, std::vector<Shard> shards, Stream& stream)
    : table(parameters),
      ranges(ranges_of(shards)),
      for_each([shards, &stream](Access, const UseShard& use) {
        for (const Shard& shard : shards) use(shard, stream);
      }),
      copy_parameters([shards, &stream](Range elements, const Tensor& to) {
        for (const Shard& shard : shards)
          if (shard.owned.contains(elements.first))
            stream.copy(to, shard.parameters.slice({elements.first - shard.owned.first, elements.count}));
        stream.synchronise();
      })
{
}

HeldShards::HeldShards(const ParameterTable& parameters, std::vector<Range> elements,
                       std::function<void(Access, const UseShard&)> walk,
                       std::function<void(Range, const Tensor&)> copy)
    : table(parameters), ranges(std::move(elements)), for_each(std::move(walk)), copy_parameters(std::move(copy))
{
}

void for_each_block(const ModelConfig& config, const HeldShards& owned, const Communicator& replica,
                    const UseBlock& use)
{
  std::vector<float> block;
  const ParameterTable table(config);
  for (const Parameter& whole : table.entries()) {
    const std::int64_t width = whole.shape[whole.shape.rank() - 1], rows = whole.shape.elements() / width;
    const std::int64_t most_rows = std::max<std::int64_t>(block_elements / width, 1);
    const auto stored = std::find_if(owned.table.entries().begin(), owned.table.entries().end(),
                                     [&](const Parameter& p) { return p.number == whole.number; });
    for (std::int64_t first = 0; first < rows; first += most_rows) {
      const Range some{first, std::min(most_rows, rows - first)};
      block.assign(static_cast<std::size_t>(some.count * width), 0);
      if (stored != owned.table.entries().end()) copy_rows(owned, *stored, some, block);
      // A bitwise OR, not a sum: 0 | x keeps every bit of x, while 0 + -0 is +0.
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, block.data(), static_cast<int>(block.size()), MPI_UINT32_T, MPI_BOR,
                              replica.handle()),
                "assembling whole parameters");
      use(whole, {first * width, some.count * width}, block);
    }
  }
}

std::string parameter_digest(const ModelConfig& config, const HeldShards& owned, const Communicator& replica)
{
  Sha256 digest;
  for_each_block(config, owned, replica, [&](const Parameter&, Range, std::span<const float> values) {
    digest.update(std::as_bytes(values));
  });
  return digest.hex();
}

std::vector<float> gather_parameters(const ModelConfig& config, const HeldShards& owned,
                                     const Communicator& replica)
{
  std::vector<float> all;
  for_each_block(config, owned, replica, [&](const Parameter&, Range, std::span<const float> values) {
    if (replica.rank() == 0) all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

ParameterDeviation deviation_of(const ModelConfig& config, std::span<const float> parameters,
                                std::span<const float> reference)
{
  ParameterDeviation sums;
  std::size_t before = 0;
  const ParameterTable table(config);
  for (const Parameter& p : table.entries()) {
    const auto count = static_cast<std::size_t>(p.shape.elements());
    const ParameterDeviation of_tensor = parameter_deviation(
        parameters.subspan(before, count), reference.subspan(static_cast<std::size_t>(p.elements.first), count));
    sums.squared_difference += of_tensor.squared_difference;
    sums.squared_norm += of_tensor.squared_norm;
    before += count;
  }
  return sums;
}

}  // namespace rankwise
