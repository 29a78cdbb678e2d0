#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

/// @file
/// Random inputs that are the same in every run.

namespace rankwise {

/// How many inputs of a kind a test tries: RANKWISE_FUZZ if it is set, else @p few.
inline int fuzz_inputs(int few)
{
  const char* const asked = std::getenv("RANKWISE_FUZZ");
  return asked != nullptr ? std::stoi(asked) : few;
}

/// Draws whole numbers; the same ones for the same seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  /// In [0, n).
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

/// @p bytes with one to three random changes: a flipped bit, a cut, more bytes, a run of zeros or of another place.
inline std::string damaged(std::string bytes, Draw& draw)
{
  const std::string whole = bytes;
  while (bytes == whole)
    for (std::size_t changes = 1 + draw.below(3); changes > 0 && !bytes.empty(); --changes) {
      const std::size_t at =
          draw.below(draw.below(2) == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 600));
      const std::size_t count = std::min<std::size_t>(1 + draw.below(64), bytes.size() - at);
      switch (draw.below(5)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw.below(8)));
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.append(count, static_cast<char>(draw.below(256)));
          break;
        case 3:
          bytes.replace(at, count, count, '\0');
          break;
        default:
          bytes.replace(at, count, whole, draw.below(whole.size()), count);
      }
    }
  return bytes;
}

}  // namespace rankwise
