#include "lessons/08_tensor_parallel/whole_tensors.hpp"

#include <algorithm>
#include <vector>

#include "common/collectives/collectives.hpp"
#include "common/digest.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t most_elements = 1 << 18;  // of a whole block, unless a row has more

std::int64_t columns_of(const Shape& shape)
{
  return shape[shape.rank() - 1];
}

/// The rows of a whole tensor in one block.
std::int64_t rows_of_block(const Parameter& p)
{
  return std::max<std::int64_t>(1, most_elements / columns_of(p.shape));
}

/// Copies a slab of a part's rows to its place in a block.
/// @param rows    of the whole tensor, in the block.
/// @param stored  the part's rows, from row @p first_stored on.
void place_slab(std::vector<float>& block, Range rows, std::int64_t columns, const std::vector<float>& stored,
                std::int64_t first_stored, std::int64_t stored_columns, const Slab& slab)
{
  const Range shared = intersect(rows, slab.rows);
  for (std::int64_t row = shared.first; row < shared.end(); ++row) {
    const std::int64_t from = (slab.stored_row + row - slab.rows.first - first_stored) * stored_columns;
    std::copy_n(stored.begin() + from + slab.stored_column, slab.columns.count,
                block.begin() + (row - rows.first) * columns + slab.columns.first);
  }
}

}  // namespace

std::int64_t whole_block_elements(const ParameterTable& table)
{
  std::int64_t most = 0;
  for (const Parameter& p : table.entries())
    most = std::max(most, std::min(p.stored.elements(), rows_of_block(p) * columns_of(p.stored)));
  return most;
}

void for_each_whole_block(const ModelConfig& config, const ParameterTable& table, const Tensor& own,
                          const Tensor& room, Group& group, const std::function<void(const WholeBlock&)>& work)
{
  std::vector<ParameterTable> tables;
  for (int part = 0; part < group.ranks(); ++part) tables.emplace_back(config, Part{part, group.ranks()});
  std::vector<float> block;
  for (std::size_t i = 0; i < table.entries().size(); ++i) {
    const Parameter& mine = table.entries()[i];
    const std::int64_t columns = columns_of(mine.shape), stored_columns = columns_of(mine.stored);
    const std::int64_t all_rows = mine.shape.elements() / columns;
    for (std::int64_t first = 0; first < all_rows; first += rows_of_block(mine)) {
      const Range rows = intersect({first, rows_of_block(mine)}, {0, all_rows});
      block.assign(static_cast<std::size_t>(rows.count * columns), 0);
      const int givers = mine.split == Split::none ? 1 : group.ranks();
      for (int part = 0; part < givers; ++part) {
        const ParameterTable& of_part = tables[static_cast<std::size_t>(part)];
        const std::vector<Slab> slabs = of_part.slabs(of_part.entries()[i]);
        const Range shared = intersect(rows, slabs.front().rows);
        if (shared.empty()) continue;
        const std::int64_t first_stored = slabs.front().stored_row + shared.first - slabs.front().rows.first;
        const Range elements{first_stored * stored_columns, shared.count * stored_columns};
        const Tensor values = room.slice({0, elements.count});
        if (part == group.rank())
          group.compute().copy(values, own.slice({mine.elements.first + elements.first, elements.count}));
        broadcast(values, part, group);
        const std::vector<float> stored = to_host<float>(group.compute(), values);
        for (const Slab& slab : slabs) place_slab(block, rows, columns, stored, first_stored, stored_columns, slab);
      }
      work({i, {rows.first * columns, rows.count * columns}, block});
    }
  }
}

std::string parameter_digest(const ModelConfig& config, const ParameterTable& table, const Tensor& own,
                             const Tensor& room, Group& group)
{
  Sha256 digest;
  for_each_whole_block(config, table, own, room, group,
                       [&](const WholeBlock& block) { digest.update(std::as_bytes(block.values)); });
  return digest.hex();
}

ParameterDeviation parameter_deviation(const ModelConfig& config, const ParameterTable& table, const Tensor& own,
                                       std::span<const float> reference, const Tensor& room, Group& group)
{
  const ParameterTable whole(config);
  ParameterDeviation sums;
  for_each_whole_block(config, table, own, room, group, [&](const WholeBlock& block) {
    if (reference.empty()) return;
    const Range elements{whole.entries()[block.tensor].elements.first + block.elements.first, block.elements.count};
    const ParameterDeviation of_block = parameter_deviation(
        block.values,
        reference.subspan(static_cast<std::size_t>(elements.first), static_cast<std::size_t>(elements.count)));
    sums.squared_difference += of_block.squared_difference;
    sums.squared_norm += of_block.squared_norm;
  });
  return sums;
}

}  // namespace rankwise
