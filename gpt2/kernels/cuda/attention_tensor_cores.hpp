#pragma once

#include <cstdint>

#include "gpt2/kernels/cuda/attention_layer.hpp"

/// @file
/// Attention on tensor cores, for bf16. For .cu files only.

namespace rankwise {

/// The forward pass of all heads.
void attend_all(cudaStream_t stream, const ForwardTensors<bf16>& tensors, const AttentionLayer& layer);

/// The backward pass of @p heads heads from layer.first_head on: attention_backward_dq_kernel and
/// attention_backward_dkv_kernel. The inner products dy y are computed before.
void launch_attention_backward(cudaStream_t stream, const BackwardTensors<bf16>& tensors,
                               const AttentionLayer& layer, std::int64_t heads);

}  // namespace rankwise
