#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "common/messages/group.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/reference_run.hpp"

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

/// Calls @p work on every rank for all elements of all tensors, in the order of the table, padding left out. The ranks of
/// the group, which divide the model, make this call together.
/// @param table  of this rank's part.
/// @param own    (table.elements()) f32, on the device or on the host.
/// @param room   (whole_block_elements(table)) f32 of the group's memory.
/// @cost         a broadcast from each part that has something of a block.
void for_each_whole_block(const ModelConfig& config, const ParameterTable& table, const Tensor& own,
                          const Tensor& room, Group& group, const std::function<void(const WholeBlock&)>& work);

/// SHA-256 over all parameters, as parameter_digest() of whole tensors; the same on all ranks of the group.
std::string parameter_digest(const ModelConfig& config, const ParameterTable& table, const Tensor& own,
                             const Tensor& room, Group& group);

/// SHA-256 over what every part has of the parameters: norms, positions, biases behind a sum. Ranks of one group that have not
/// all made the same updates of it have not the same digest.
std::string common_digest(const ParameterTable& table, const Tensor& own, Stream& stream);

/// How far the parameters of all parts are from a reference; ranks without one give nothing.
/// @param own        (table.elements()) f32.
/// @param reference  of ReferenceRun, or empty.
ParameterDeviation parameter_deviation(const ModelConfig& config, const ParameterTable& table, const Tensor& own,
                                       std::span<const float> reference, const Tensor& room, Group& group);

}  // namespace rankwise
