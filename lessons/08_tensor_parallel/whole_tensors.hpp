#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "common/messages/group.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/reference_run.hpp"
#include "lessons/04_zero1/shards.hpp"

/// @file
/// The whole tensors of a model that is divided, put together block by block: nobody ever holds more of the other parts.

namespace rankwise {

/// Some neighbouring rows of a whole tensor.
struct WholeBlock {
  std::size_t tensor = 0;         ///< its place among ParameterTable(config).entries()
  Range elements{};               ///< of the tensor, row by row
  std::span<const float> values;  ///< (elements.count) on the host
};

/// The most elements that a part gives to a block: the room that is needed.
std::int64_t whole_block_elements(const ParameterTable& table);

/// Who has which units of a model that is divided into parts and into runs of units.
struct UnitOwners {
  Group& group;                        ///< a rank for each run of units, all with the same part
  std::function<int(int unit)> owner;  ///< the rank of the group that has a unit
};

/// A model of which each rank has a part.
struct DividedModel {
  const ModelConfig& config;    ///< the sizes
  const ParameterTable& table;  ///< of this rank's part, all units
  CopyOwn copy_own;  ///< gives f32 elements of the table, of the units that this rank has; all who have the same
                     ///< elements are asked for them together
  Group& parts;      ///< the ranks that divide every tensor
  const UnitOwners* owners = nullptr;  ///< who has which units; null: every rank has its part of all
};
/// One whose parts lie in one vector each.
/// @param own  (table.elements()) f32, on the device or on the host; the views outlive the model.
DividedModel divided_model(const ModelConfig& config, const ParameterTable& table, const Tensor& own, Group& parts);

/// Calls @p work on every rank for all elements of all tensors, in the order of the table, padding left out. All ranks that
/// have some of the model make this call together.
/// @param room   (whole_block_elements(table)) f32 of the groups' memory.
/// @cost         a broadcast from each part that has something of a block, and one more among the owners of units.
void for_each_whole_block(const DividedModel& model, const Tensor& room,
                          const std::function<void(const WholeBlock&)>& work);

/// SHA-256 over all parameters, as parameter_digest() of whole tensors; the same on all ranks.
std::string parameter_digest(const DividedModel& model, const Tensor& room);

/// How far the parameters of all parts are from a reference; ranks without one give nothing.
/// @param reference  of ReferenceRun, or empty.
ParameterDeviation parameter_deviation(const DividedModel& model, std::span<const float> reference,
                                       const Tensor& room);

}  // namespace rankwise
