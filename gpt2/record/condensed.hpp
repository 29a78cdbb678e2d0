#pragma once

#include <array>
#include <cstdint>

#include "common/base/partition.hpp"

/// @file
/// A tensor in a few numbers, of which parts can be added: the sum over the parts that several devices have is
/// that of the whole tensor, however it was divided.

namespace rankwise {

/// Number of projections of a Condensed.
inline constexpr int projections = 4;

/// A digest and the size of some elements of a tensor. Those of disjoint elements of the same tensor add up.
struct Condensed {
  std::uint64_t digest = 0;   ///< sum over the elements, modulo 2^64, of a hash of an element's place and bits
  std::uint64_t numbers = 0;  ///< the same of their bits alone: equal where only the places are others
  double squares = 0;         ///< sum of the squares
  /// Sums of the elements with signs that depend on their places. A projection of a difference is the difference of the
  /// projections, and the mean of its squares estimates the squared norm of the difference (Achlioptas 2003).
  std::array<double, projections> projected{};

  /// Adds a digest of other elements.
  Condensed& operator+=(const Condensed& other);
  /// Adds @p factor times the projections of another tensor; the digest is lost.
  void add_projections(double factor, const Condensed& other);
};

/// The norm of a - b, estimated from their projections.
double distance(const Condensed& a, const Condensed& b);

/// Position of values in a whole tensor: a rectangle in which every row has the columns of each section.
struct Piece {
  Range rows{};                    ///< rows of the whole tensor
  Range columns{};                 ///< columns of each section
  std::int64_t whole_columns = 0;  ///< columns of a section of the whole tensor
  std::int64_t sections = 1;       ///< runs of columns that are divided separately: 3 for q, k and v
};

/// Condenses n values, which are the elements first, first + 1, ... of the whole tensor.
Condensed condense(std::int64_t first, const float* values, std::int64_t n);

/// Condenses the values of a rectangle.
/// @param piece   its place in the whole tensor.
/// @param values  piece.rows.count rows of piece.sections x piece.columns.count values.
/// @param stride  distance of two rows in @p values.
Condensed condense(const Piece& piece, const float* values, std::int64_t stride);

/// A number as a tensor of one element.
Condensed condense(double number);

}  // namespace rankwise
