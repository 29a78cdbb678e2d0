#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/memory/tensor.hpp"

/// @file
/// The peak rates of a machine: matrix products by its libraries, and the bandwidth of its memory.

namespace rankwise {

/// The OpenMP threads and, where it is linked, OpenBLAS's threads from now on.
void set_threads(int threads);

/// The libraries with a matrix product that this program is linked with, with their versions: "oneDNN 2.6.3".
std::vector<std::string> gemm_libraries();

/// One measurement of a matrix product.
struct GemmRate {
  std::string library;      ///< "oneDNN", "OpenBLAS", or "own" for what gemm.hpp uses
  DType type;               ///< of the factors: f32 or bf16
  std::int64_t size = 0;    ///< rows and columns of all three matrices
  double gflops_per_s = 0;  ///< 2 size^3 operations a product
};

/// Square matrices of one size to multiply, in f32 and bf16, with results in f32.
class GemmMeasurement {
 public:
  /// @param size  rows and columns; 16 size^2 bytes are held.
  explicit GemmMeasurement(std::int64_t size);

  /// What each library that has such a product reaches now with factors of @p type, with as many threads as set_threads()
  /// said: as many products as last @p least_s together, at least one.
  std::vector<GemmRate> measure(DType type, double least_s);

  /// Rows and columns.
  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_;
  std::vector<float> a_, b_, c_;
  std::vector<bf16> a_bf16_, b_bf16_;
};

/// Bytes that one thread moves a second, as a program sees it: what the cache reads in order to overwrite it is not
/// counted.
struct Bandwidth {
  double read_GBps = 0;    ///< sum += x[i]
  double triad_GBps = 0;   ///< x[i] = y[i] + s z[i], two reads and a write (STREAM)
  double update_GBps = 0;  ///< x[i], y[i] and z[i] += s w[i], four reads and three writes in place, as AdamW does
};

/// Four arrays that no cache holds.
/// @source  McCalpin 1995 (STREAM).
class BandwidthMeasurement {
 public:
  /// @param array_bytes  of each of them.
  explicit BandwidthMeasurement(std::int64_t array_bytes);

  /// What one thread reaches now.
  Bandwidth measure();

 private:
  std::vector<float> x_, y_, z_, w_;
};

}  // namespace rankwise
