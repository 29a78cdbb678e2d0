#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// Buckets: gradients that one collective sums over the ranks.

namespace rankwise {

/// Neighbouring units of the parameter table whose gradients one collective sums.
struct Bucket {
  Range units;     ///< units of the parameter table
  Range elements;  ///< elements of its flat vector
};

/// Refuses an invalid size of buckets.
/// @throws UserError  unless @p bytes is positive.
void check_bucket(std::int64_t bytes);

/// Groups all units of a table into buckets, in the order of the backward pass: the last unit first. Units are
/// added to a bucket until it has at least @p bytes; a unit is never divided.
///
///     nano, 200 kB     [head, h.3.mlp, h.3.attn]  [h.2.mlp, h.2.attn, h.1.mlp] ...     from the loss to the embedding
///
/// @param table  the parameters.
/// @param type   type of the gradients.
/// @param bytes  least size of a bucket but the last, > 0.
/// @source  Li et al. 2020, section 3.2.3.
std::vector<Bucket> make_buckets(const ParameterTable& table, DType type, std::int64_t bytes);

/// `--strategy`: when gradients are summed over the ranks.
enum class Strategy : std::uint8_t {
  per_tensor,  ///< after the backward pass, tensor by tensor
  flat,        ///< after the backward pass, all in one message
  bucketed,    ///< after the backward pass, bucket by bucket
  overlapped,  ///< during the backward pass, each bucket as soon as it is complete
};

/// The ranges of the flat vector that are all-reduced one after the other: tensors, the whole vector, or buckets.
/// @param table, type, bytes  as for make_buckets().
std::vector<Range> pieces_of(const ParameterTable& table, DType type, Strategy strategy, std::int64_t bytes);

}  // namespace rankwise
