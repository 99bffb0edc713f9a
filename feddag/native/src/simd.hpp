// The vector type every kernel is written in, as wide as the target allows, and the memory it works on.
// Compiler vector extensions keep one source for every instruction set and for float and double alike.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace feddag {

// Rows of a register tile two vectors wide, so that the sums and the operands fit the registers there are.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 12;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 6;
#else
constexpr int kVectorBytes = 16, kTileRows = 6;
#endif

// Before a loop over an array of vectors: only an unrolled loop lets the compiler keep the array in registers.
#if defined(__SANITIZE_ADDRESS__)
#define FEDDAG_UNROLL  // checked builds need not be fast, and compile in minutes only without
#else
#define FEDDAG_UNROLL _Pragma("GCC unroll 32")
#endif

// An integer as wide as T, so that comparing numbers and choosing between integers use the same lanes.
template <class T> using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

template <class T, int Lanes = kVectorBytes / int(sizeof(T))> struct VectorOf {
    typedef T type __attribute__((vector_size(Lanes * sizeof(T))));
};
template <class T> using Vec = typename VectorOf<T>::type;
template <class T> constexpr int kLanes = kVectorBytes / int(sizeof(T));

// Lanes of a part of a vector, or of the least that any processor has.
template <class T> constexpr int part_lanes(int parts) {
    return kVectorBytes / parts < 16 ? 16 / int(sizeof(T)) : kLanes<T> / parts;
}

template <class T> inline Vec<T> load(const T* from) {
    Vec<T> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class T> inline void store(T* to, Vec<T> v) { std::memcpy(to, &v, sizeof v); }

template <class T> inline Vec<T> splat(T value) { return Vec<T>{} + value; }

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Zeroed memory with room for one vector read beyond the last element.
template <class T> class Buffer {
public:
    Buffer() = default;
    explicit Buffer(std::size_t size) : size_(size) {
        const std::size_t bytes = (size * sizeof(T) + kVectorBytes + 63) / 64 * 64;
        data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
        if (!data_) throw std::bad_alloc();
        std::memset(static_cast<void*>(data_.get()), 0, bytes);
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T& operator[](std::size_t i) { return data_.get()[i]; }
    const T& operator[](std::size_t i) const { return data_.get()[i]; }
    std::size_t size() const { return size_; }
    void clear() { std::memset(static_cast<void*>(data_.get()), 0, size_ * sizeof(T)); }

private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    std::size_t size_ = 0;
};

}  // namespace feddag
