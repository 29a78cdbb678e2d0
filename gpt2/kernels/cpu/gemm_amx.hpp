#pragma once

#include <cstdint>

#include "gpt2/kernels/cpu/gemm.hpp"

/// @file
/// Matrix products of bf16 on the tiles of AMX (Intel, Architecture Instruction Set Extensions Programming Reference,
/// chapter 3): a tile has 16 rows of 64 bytes, and one instruction multiplies two of them, 8,192 products in 16 cycles.

namespace rankwise {

/// True if this processor has tiles for bf16, and the system lets this process use them.
bool amx_multiplies_bf16();

/// out = a b + bias, or out += a b + bias, as gemm() in gemm.hpp has it, on the tiles.
/// @pre amx_multiplies_bf16() and k > 0
/// @tparam Out  float or bf16.
template <class Out>
void multiply_on_tiles(Out* out, std::int64_t out_stride, GemmOperand<bf16> a, GemmOperand<bf16> b, std::int64_t m,
                       std::int64_t n, std::int64_t k, bool accumulate, const bf16* bias);

}  // namespace rankwise
