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

/// Rows of a whole tensor that are put together.
struct RowBlock {
  Range rows;            // of the tensor
  std::int64_t columns;  // of the tensor
  std::vector<float> values;
};

/// The stored rows of a part that have something of @p rows of the whole tensor.
Range stored_rows(const std::vector<Slab>& slabs, Range rows)
{
  const Slab& slab = slabs.front();  // all slabs of a tensor are of the same rows
  const Range shared = intersect(rows, slab.rows);
  return {slab.stored_row + shared.first - slab.rows.first, shared.count};
}

/// Puts some stored rows of a part to their places.
void place(RowBlock& to, const std::vector<Slab>& slabs, Range stored, const std::vector<float>& values)
{
  const std::int64_t columns = static_cast<std::int64_t>(values.size()) / stored.count;
  for (const Slab& slab : slabs)
    for (std::int64_t i = 0; i < stored.count; ++i) {
      const std::int64_t row = slab.rows.first + stored.first + i - slab.stored_row - to.rows.first;
      std::copy_n(values.begin() + i * columns + slab.stored_column, slab.columns.count,
                  to.values.begin() + row * to.columns + slab.columns.first);
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

DividedModel divided_model(const ModelConfig& config, const ParameterTable& table, const Tensor& own, Group& parts)
{
  Stream& stream = parts.compute();
  return {config, table, [own, &stream](Range elements, const Tensor& to) { stream.copy(to, own.slice(elements)); },
          parts};
}

namespace {

/// Brings stored rows of a part to all ranks.
void bring_part(const DividedModel& model, int part, int unit, Range elements, const Tensor& values)
{
  const int owner = model.owners != nullptr ? model.owners->owner(unit) : 0;
  if (model.owners == nullptr || owner == model.owners->group.rank()) {
    if (part == model.parts.rank()) model.copy_own(elements, values);
    broadcast(values, part, model.parts);
  }
  if (model.owners != nullptr) broadcast(values, owner, model.owners->group);
}

}  // namespace

void for_each_whole_block(const DividedModel& model, const Tensor& room,
                          const std::function<void(const WholeBlock&)>& work)
{
  std::vector<ParameterTable> tables;
  for (int part = 0; part < model.parts.ranks(); ++part)
    tables.emplace_back(model.config, Part{part, model.parts.ranks()});

  const auto bring = [&](RowBlock& to, std::size_t tensor, int part) {
    const Parameter& p = tables[static_cast<std::size_t>(part)].entries()[tensor];
    const std::vector<Slab> slabs = tables[static_cast<std::size_t>(part)].slabs(p);
    const Range stored = stored_rows(slabs, to.rows);
    if (stored.empty()) return;
    const std::int64_t columns = columns_of(p.stored);
    const Tensor values = room.slice({0, stored.count * columns});
    bring_part(model, part, p.unit, {p.elements.first + stored.first * columns, values.elements()}, values);
    place(to, slabs, stored, to_host<float>(model.parts.compute(), values));
  };

  const std::vector<Parameter>& entries = model.table.entries();
  for (std::size_t tensor = 0; tensor < entries.size(); ++tensor) {
    const Parameter& p = entries[tensor];
    const std::int64_t columns = columns_of(p.shape), rows = p.shape.elements() / columns;
    const int givers = p.split == Split::none ? 1 : model.parts.ranks();
    for (std::int64_t first = 0; first < rows; first += rows_of_block(p)) {
      RowBlock block{intersect({first, rows_of_block(p)}, {0, rows}), columns, {}};
      block.values.resize(static_cast<std::size_t>(block.rows.count * columns));
      for (int part = 0; part < givers; ++part) bring(block, tensor, part);
      work({tensor, {first * columns, block.rows.count * columns}, block.values});
    }
  }
}

std::string parameter_digest(const DividedModel& model, const Tensor& room)
{
  Sha256 digest;
  for_each_whole_block(model, room, [&](const WholeBlock& block) { digest.update(std::as_bytes(block.values)); });
  return digest.hex();
}

ParameterDeviation parameter_deviation(const DividedModel& model, std::span<const float> reference,
                                       const Tensor& room)
{
  const ParameterTable whole(model.config);
  ParameterDeviation sums;
  for_each_whole_block(model, room, [&](const WholeBlock& block) {
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
