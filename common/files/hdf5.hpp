#pragma once

#include <array>
#include <cstdint>
#include <hdf5.h>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/source_location.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// HDF5 with ownership and checks: identifiers close themselves, and every failed call throws.

namespace rankwise {

/// Owns one HDF5 identifier (file, dataset, dataspace, ...) and closes it; movable, not copyable.
///
/// HDF5 buffers up to 64 KiB of a dataset, and all of a file's structure, until they are closed: objects that were
/// written to must be closed by close(). The destructor is for objects that were only read, and for stack
/// unwinding; an error in it otherwise ends the program.
class Hdf5Object {
 public:
  /// Closes an identifier: H5Fclose, H5Dclose and their like.
  using Close = herr_t (*)(hid_t);

  /// Owns nothing.
  Hdf5Object() = default;
  /// Owns @p id. Throws Error when @p id is negative, which means that the HDF5 call failed.
  /// @param id     result of the HDF5 call.
  /// @param closer function that closes it.
  /// @param doing  purpose of the call, as "open dataset train of corpus.h5".
  /// @param where  the line of the caller.
  Hdf5Object(hid_t id, Close closer, std::string_view doing, SourceLocation where = SourceLocation::current());
  /// Takes over what @p other owns.
  Hdf5Object(Hdf5Object&& other) noexcept;
  /// Closes what it owns and takes over what @p other owns.
  Hdf5Object& operator=(Hdf5Object&& other) noexcept;
  ~Hdf5Object();

  /// The identifier.
  hid_t id() const { return id_; }
  /// Closes the object now. This writes buffered bytes, so a full disk may be detected only here. Does nothing if
  /// nothing is owned.
  /// @failure  Error.
  void close(std::string_view doing, SourceLocation where = SourceLocation::current());

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
  std::string doing_;
};

/// Throws Error with HDF5's own reason when @p status, the result of an HDF5 call, is negative.
/// @return   @p status.
std::int64_t check_hdf5(std::int64_t status, std::string_view doing,
                        SourceLocation where = SourceLocation::current());

/// HDF5's own reason for the last failed call, innermost cause, one line; empty if none failed.
std::string hdf5_cause();

/// Opens @p path. Throws Error.
/// @param flags  H5F_ACC_RDWR: for reading and writing.
Hdf5Object open_hdf5(const std::string& path, unsigned flags = H5F_ACC_RDONLY);
/// Creates @p path, or truncates it if it exists. Throws Error. Neither of these functions uses HDF5's file
/// locking, which fails on file systems without locks; FileLock protects the file instead.
/// @param path        the file.
/// @param user_block  bytes that HDF5 reserves at the beginning of the file: 0, 512 or a greater power of two.
Hdf5Object create_hdf5(const std::string& path, std::int64_t user_block = 0);
/// True if @p object has an attribute called @p name.
bool has_attribute(const Hdf5Object& object, const std::string& name);
/// Writes the text attribute @p name, which must not exist yet.
void write_attribute(const Hdf5Object& object, const std::string& name, const std::string& text);
/// Writes the integer attribute @p name, which must not exist yet.
void write_attribute(const Hdf5Object& object, const std::string& name, std::int64_t value);
/// The text attribute @p name. Throws Error when it is missing or not text.
std::string read_text_attribute(const Hdf5Object& object, const std::string& name);
/// The integer attribute @p name. Throws Error when it is missing or not one integer.
std::int64_t read_integer_attribute(const Hdf5Object& object, const std::string& name);

/// Names of the attributes of @p object, in alphabetical order.
std::vector<std::string> attribute_names(const Hdf5Object& object);

/// Creates the group @p name, which must not exist yet.
Hdf5Object create_group(const Hdf5Object& parent, const std::string& name);
/// The group @p name. Throws Error when it is missing, something else, or in another file.
Hdf5Object open_group(const Hdf5Object& parent, const std::string& name);
/// Names of a group's members, in alphabetical order.
std::vector<std::string> members(const Hdf5Object& group);

/// Creates the contiguous f32 dataset @p name and allocates it in the file: elements not written are undefined.
/// @param shape  one or two extents.
Hdf5Object create_f32_dataset(const Hdf5Object& parent, const std::string& name, const Shape& shape);
/// Creates the dataset @p name of 64-bit unsigned integers, initialised to zero.
Hdf5Object create_u64_dataset(const Hdf5Object& parent, const std::string& name, std::int64_t count);
/// Writes all of a dataset that create_u64_dataset() made.
void write_u64(const Hdf5Object& dataset, std::span<const std::uint64_t> values);
/// Reads all of a dataset of one dimension. Throws Error.
std::vector<std::uint64_t> read_u64(const Hdf5Object& dataset);

/// Opens the dataset @p name, which must be stored uncompressed in this file, as those that we write are, so that
/// the file's length bounds the memory that a reader needs. Otherwise throws Error with the reason.
Hdf5Object open_plain_dataset(const Hdf5Object& parent, const std::string& name);
/// Its extents. Throws Error for more than two dimensions.
Shape shape_of(const Hdf5Object& dataset);
/// True if its elements are f32, in either byte order.
bool holds_f32(const Hdf5Object& dataset);

/// A rectangle to copy between a block of memory and a dataset. Vectors are one row.
struct Hdf5Slab {
  std::array<std::int64_t, 2> count{};        ///< rows and columns of the rectangle
  std::array<std::int64_t, 2> at{};           ///< its first row and column in the dataset
  std::array<std::int64_t, 2> block{};        ///< rows and columns of the block of memory, row-major
  std::array<std::int64_t, 2> at_in_block{};  ///< its first row and column in the block
};

/// Writes a rectangle of @p block, f32, to a dataset of one or two dimensions. Throws Error, also for a full disk.
void write_slab(const Hdf5Object& dataset, const Hdf5Slab& slab, const float* block);
/// Reads a rectangle of a dataset of one or two dimensions into @p block, f32.
void read_slab(const Hdf5Object& dataset, const Hdf5Slab& slab, float* block);

}  // namespace rankwise
