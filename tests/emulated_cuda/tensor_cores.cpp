#include <array>
#include <bit>
#include <tensor_cores.h>

namespace emulated_cuda {

namespace {

/// Arguments and result of one lane in load_matrices().
struct Load : WarpWork {
  std::array<unsigned, 4> row;
  bool transposed;
  unsigned (&to)[4];
};

/// Arguments of one lane in multiply_matrices().
struct Multiplication : WarpWork {
  float (&sums)[2][2][2];
  const unsigned (&left)[4];
  const unsigned (&right)[4];
};

using Square = std::array<std::array<float, 16>, 16>;

template <class Brought>
Brought& of_lane(const std::uint64_t* lanes, int lane)
{
  return *static_cast<Brought*>(reinterpret_cast<WarpWork*>(lanes[lane]));
}

/// Number @p i of the eight of a line.
unsigned number_of(const std::array<unsigned, 4>& row, int i)
{
  return row[static_cast<std::size_t>(i / 2)] >> (16 * (i % 2)) & 0xffff;
}

float half_of(unsigned word, int half)
{
  return std::bit_cast<float>((half == 0 ? word << 16 : word & 0xffff0000u));
}

void load_all(const std::uint64_t* lanes)
{
  for (int lane = 0; lane < warpSize; ++lane) {
    Load& mine = of_lane<Load>(lanes, lane);
    const int i = lane / 4, j = lane % 4;
    for (int m = 0; m < 4; ++m) {
      const auto number = [&](int c) {
        const int line = mine.transposed ? 2 * j + c : i, column = mine.transposed ? i : 2 * j + c;
        return number_of(of_lane<Load>(lanes, 8 * m + line).row, column);
      };
      mine.to[m] = number(0) | number(1) << 16;
    }
  }
}

void multiply_all(const std::uint64_t* lanes)
{
  Square left{}, right{};
  const auto at = [](Square& square, int line, int column) -> float& {
    return square[static_cast<std::size_t>(line)][static_cast<std::size_t>(column)];
  };
  for (int word = 0; word < 4 * warpSize; ++word) {
    const int lane = word / 4, i = lane / 4, j = lane % 4, r = word % 2, n = word % 4 / 2;
    const Multiplication& mine = of_lane<Multiplication>(lanes, lane);
    for (int c = 0; c < 2; ++c) {
      at(left, i + 8 * r, 8 * n + 2 * j + c) = half_of(mine.left[word % 4], c);
      at(right, 8 * r + 2 * j + c, i + 8 * n) = half_of(mine.right[word % 4], c);
    }
  }
  Square sums{};
  for (std::size_t line = 0; line < 16; ++line)
    for (std::size_t k = 0; k < 16; ++k)
      for (std::size_t column = 0; column < 16; ++column) sums[line][column] += left[line][k] * right[k][column];
  for (int lane = 0; lane < warpSize; ++lane) {
    const Multiplication& mine = of_lane<Multiplication>(lanes, lane);
    for (int n = 0; n < 2; ++n)
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 2; ++c) mine.sums[n][r][c] += at(sums, lane / 4 + 8 * r, 8 * n + 2 * (lane % 4) + c);
  }
}

void come_with(WarpCall call, WarpWork& work, Line where)
{
  warp_exchange(call, 0xffffffffu, reinterpret_cast<std::uint64_t>(&work), 0, where);
}

}  // namespace

void load_matrices(unsigned (&to)[4], const unsigned (&row)[4], bool transposed, const char* file, unsigned line)
{
  Load load{{load_all}, std::to_array(row), transposed, to};
  come_with(WarpCall::load_matrices, load, {file, line});
}

void multiply_matrices(float (&sums)[2][2][2], const unsigned (&left)[4], const unsigned (&right)[4],
                       const char* file, unsigned line)
{
  Multiplication multiplication{{multiply_all}, sums, left, right};
  come_with(WarpCall::multiply_matrices, multiplication, {file, line});
}

}  // namespace emulated_cuda
