#include "data/permutation.hpp"

#include <utility>

#include "common/base/error.hpp"
#include "common/base/philox.hpp"

namespace rankwise {

namespace {

// Luby and Rackoff prove that 4 rounds suffice for long halves. Here a half may have one bit only, so 8 are used.
constexpr std::uint32_t rounds = 8;

// "perm": makes these random numbers differ from those of other uses of the same seed.
constexpr std::uint32_t purpose = 0x7065726D;

}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch)
    : n_(static_cast<std::uint64_t>(n)),
      half_bits_(1),
      key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
      epoch_(static_cast<std::uint64_t>(epoch))
{
  check(1 <= n && n <= std::int64_t{1} << 62, "a permutation needs between 1 and 2^62 elements");
  check(epoch >= 0, "the number of an epoch is not negative");
  while (std::uint64_t{1} << 2 * half_bits_ < n_) ++half_bits_;
}

std::int64_t Permutation::operator()(std::int64_t i) const
{
  check(0 <= i && i < size(), "a place outside the permutation");
  std::uint64_t value = network(static_cast<std::uint64_t>(i));
  while (value >= n_) value = network(value);  // terminates, because the cycle of i returns to i < n
  return static_cast<std::int64_t>(value);
}

/// The Feistel network: a bijection of [0, 2^2h).
std::uint64_t Permutation::network(std::uint64_t value) const
{
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const PhiloxWords words = philox({static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(epoch_),
                                      static_cast<std::uint32_t>(epoch_ >> 32), purpose + round},
                                     key_);
    left = std::exchange(right, left ^ (words[0] & mask));
  }
  return left << half_bits_ | right;
}

TrainingOrder::TrainingOrder(std::int64_t n, std::uint64_t seed, std::int64_t global_batch)
    : n_(n), seed_(seed), global_batch_(global_batch)
{
  check(global_batch >= 1, "a global batch needs a sequence");
}

std::int64_t TrainingOrder::at(std::int64_t step, std::int64_t sequence) const
{
  check(step >= 0, "the number of a step is not negative");
  check(0 <= sequence && sequence < global_batch_, "a sequence outside the global batch");
  const std::int64_t g = step * global_batch_ + sequence;
  return Permutation(n_, seed_, g / n_)(g % n_);
}

}  // namespace rankwise
