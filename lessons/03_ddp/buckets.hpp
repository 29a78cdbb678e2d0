#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// Buckets: gradients that are sent together.

namespace rankwise {

/// Neighbouring units whose gradients are sent together.
struct Bucket {
  Range units;     ///< of the parameter table
  Range elements;  ///< of its flat vector
};

/// Refuses a size that no bucket can have.
/// @throws UserError  unless @p bytes is positive.
void check_bucket(std::int64_t bytes);

/// Cuts all units of a table into buckets, in the order in which a backward pass is done with them: the last unit first.
/// Units are added to a bucket until it has at least @p bytes; none is cut.
///
///     nano, 200 kB     [head, h.3.mlp]  [h.3.attn, h.2.mlp] ...        unit by unit, from the loss to the embedding
///
/// @param table  the parameters.
/// @param type   of the gradients.
/// @param bytes  > 0.
/// @source  Li et al. 2020, section 3.2.3.
std::vector<Bucket> make_buckets(const ParameterTable& table, DType type, std::int64_t bytes);

/// `--strategy`: when gradients are summed over the ranks.
enum class Strategy : std::uint8_t {
  per_tensor,  ///< after the backward pass, one tensor after the other
  flat,        ///< after the backward pass, all at once
  bucketed,    ///< after the backward pass, in buckets
  overlapped,  ///< in buckets, each as soon as the backward pass is done with it
};

/// The runs of the flat vector whose gradients are summed over the ranks one after the other: tensors, all at once, or buckets.
/// @param table, type, bytes  as for make_buckets().
std::vector<Range> pieces_of(const ParameterTable& table, DType type, Strategy strategy, std::int64_t bytes);

}  // namespace rankwise
