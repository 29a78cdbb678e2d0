// Prints the windows that each step of a run reads, a line for each step:  windows TOKENS T G SEED STEPS

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <fmt/ranges.h>

#include "data/loader.hpp"

int main(int argc, char** argv)
{
  using namespace rankwise;
  std::vector<std::int64_t> numbers;
  for (int i = 1; i < argc; ++i) numbers.push_back(std::strtoll(argv[i], nullptr, 10));

  const auto tokens = std::make_shared<MemoryTokens>(std::vector<Token>(static_cast<std::size_t>(numbers.at(0))));
  const Loader loader(
      tokens,
      {.T = numbers.at(1), .global_batch = numbers.at(2), .seed = static_cast<std::uint64_t>(numbers.at(3))});
  for (std::int64_t step = 0; step < numbers.at(4); ++step) {
    std::vector<std::int64_t> windows;
    for (std::int64_t sequence = 0; sequence < numbers.at(2); ++sequence)
      windows.push_back(loader.window_of(step, sequence));
    fmt::print("{}\n", fmt::join(windows, " "));
  }
}
