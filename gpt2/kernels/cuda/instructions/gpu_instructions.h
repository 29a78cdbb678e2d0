#pragma once

/// @file
/// Instructions of a GPU that have no C++ counterpart, as PTX. For .cu files only; an emulated GPU has a header of
/// the same name in its include folder.
///
/// @source  PTX ISA: ldmatrix, mma ("Matrix fragments for mma.m16n8k16"), cp.async, ex2.

namespace rankwise {

/// Loads four matrices of 8 x 8 numbers of 16 bits from shared memory. All threads of a warp call it: lanes 8 m ...
/// 8 m + 7 pass the addresses of the lines of matrix m, each aligned to 16 bytes. Word m receives the thread's
/// numbers of matrix m: lane 4 i + j has numbers 2 j and 2 j + 1 of line i, or with @p transposed of column i.
template <bool transposed>
__device__ void load_matrices(unsigned (&to)[4], const void* line)
{
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(line));
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

/// sums += left right, (16, 16) each, bf16 with sums in f32. All
/// threads of a warp call it; lane 4 i + j has these numbers:
/// @param sums   [n][r][c]: line i + 8 r, column 8 n + 2 j + c.
/// @param left   half c of word r + 2 n: line i + 8 r, column 8 n + 2 j + c.
/// @param right  half c of word r + 2 n: line 8 r + 2 j + c, column i + 8 n.
__device__ inline void multiply_matrices(float (&sums)[2][2][2], const unsigned (&left)[4],
                                         const unsigned (&right)[4])
{
  for (int n = 0; n < 2; ++n)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[n][0][0]), "+f"(sums[n][0][1]), "+f"(sums[n][1][0]), "+f"(sums[n][1][1])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[2 * n]), "r"(right[2 * n + 1]));
}

/// Begins a copy of 16 bytes from memory of the device to shared memory, both aligned to 16. Unless @p here,
/// nothing is read, and zeros are written. __pipeline_commit() and __pipeline_wait_prior() wait for it.
__device__ inline void copy_piece(void* to, const void* from, bool here)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(here ? 16 : 0)
               : "memory");
}
/// Begins a copy of one number, as copy_piece() does.
__device__ inline void copy_number(float* to, const float* from, bool here)
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(here ? 4 : 0)
               : "memory");
}

/// 2 to the power of @p x, within 2 units in the last place; zero below 2^-126.
__device__ inline float power_of_two(float x)
{
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

}  // namespace rankwise
