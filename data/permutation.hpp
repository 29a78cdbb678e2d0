#pragma once

#include <array>
#include <cstdint>

/// @file
/// The order in which training visits its data, computed instead of stored.

namespace rankwise {

/// A pseudorandom bijection of [0, n) onto itself, in O(1) memory and time.
///
/// A balanced Feistel network permutes [0, 2^2h), the smallest such range that contains n values: each of its
/// rounds maps the halves (left, right) to (right, left xor f(right)), which is one-to-one for any f; f is computed
/// with Philox. Cycle walking restricts the range to n: a value >= n goes through the network again until it falls
/// below n, on average after at most 4 iterations, because 2^2h <= 4 n.
///
/// Every rank computes the same order from (n, seed, epoch), so it need not be sent or stored.
///
/// @source  Luby and Rackoff 1988, doi:10.1137/0217022; cycle walking: Black and Rogaway 2002.
class Permutation {
 public:
  /// @param n      number of elements, n >= 1.
  /// @param seed   the run's seed.
  /// @param epoch  number of the epoch; each epoch has a different order.
  Permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch);

  /// n.
  std::int64_t size() const { return static_cast<std::int64_t>(n_); }
  /// The element at position @p i of the new order, 0 <= i < n.
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::uint64_t network(std::uint64_t value) const;

  std::uint64_t n_;
  unsigned half_bits_;  // h: a value has 2 h bits
  std::array<std::uint32_t, 2> key_;
  std::uint64_t epoch_;
};

/// The order in which training visits n elements (windows or pairs of a text): step s takes elements sG .. sG+G-1 of
/// an infinite list, whose element g is Permutation(n, seed, g / n)(g % n). Each epoch visits each element once, in a
/// different order.
class TrainingOrder {
 public:
  /// @param n             number of elements, n >= 1.
  /// @param seed          seed of the run.
  /// @param global_batch  G: elements per step over all devices, G >= 1.
  TrainingOrder(std::int64_t n, std::uint64_t seed, std::int64_t global_batch);

  /// n.
  std::int64_t size() const { return n_; }
  /// Number of steps, rounded up, after which every element has been visited @p epochs times.
  std::int64_t steps(std::int64_t epochs) const { return (epochs * n_ + global_batch_ - 1) / global_batch_; }
  /// The element that is sequence @p sequence of step @p step.
  /// Throws Error unless step >= 0 and 0 <= sequence < G.
  std::int64_t at(std::int64_t step, std::int64_t sequence) const;

 private:
  std::int64_t n_;
  std::uint64_t seed_;
  std::int64_t global_batch_;
};

}  // namespace rankwise
