// From rows of elements to rows of vectors and back: dealing out, and turning channels last.
#pragma once
#include <array>
#include <utility>

#include "simd.hpp"

namespace feddag {

// Elements of a, then b, by number.
template <class T, int... I> inline Vec<T> pick(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, I...);
#else
    return __builtin_shuffle(a, b, Vec<Index<T>>{I...});
#endif
}

template <int First, int... I> constexpr auto every_second(std::integer_sequence<int, I...>) {
    return std::integer_sequence<int, 2 * I + First...>();
}
template <int First, int L, int... I> constexpr auto alternating(std::integer_sequence<int, I...>) {
    return std::integer_sequence<int, First + I / 2 + I % 2 * L...>();
}

// a0 b0 a1 b1 ...: its first and its second half.
template <class T> inline void interleave(Vec<T> a, Vec<T> b, Vec<T>& low, Vec<T>& high) {
    constexpr int L = kLanes<T>;
    using Lanes = std::make_integer_sequence<int, L>;
    low = pick<T>(a, b, alternating<0, L>(Lanes()));
    high = pick<T>(a, b, alternating<L / 2, L>(Lanes()));
}

// Element i of a row goes to stream i % streams; streams are `step` apart.
template <class T> void deal(const T* row, int count, int streams, T* to, int step) {
    constexpr int L = kLanes<T>;
    using Lanes = std::make_integer_sequence<int, L>;
    int i = 0;
    if (streams == 1)
        for (; i + L <= count; i += L) store(to + i, load(row + i));
    if (streams == 2)
        for (; i + 2 * L <= count; i += 2 * L) {
            const Vec<T> a = load(row + i), b = load(row + i + L);
            store(to + i / 2, pick<T>(a, b, every_second<0>(Lanes())));
            store(to + i / 2 + step, pick<T>(a, b, every_second<1>(Lanes())));
        }
    for (int s = 0; s < streams; s++) {
        T* next = to + s * step + i / streams;
        for (int j = i + s; j < count; j += streams) *next++ = row[j];
    }
}

// C vectors of pixels, one for each channel, to pixels of C channels: channels C / 2 apart are brought together first,
// then pairs of those, until pixels are whole.
template <class T, int C> inline void transpose(const T* channels, T* pixels) {
    constexpr int L = kLanes<T>;
    Vec<T> now[C], next[C];
    FEDDAG_UNROLL for (int c = 0; c < C; c++) now[c] = load(channels + c * L);
    FEDDAG_UNROLL for (int apart = C / 2; apart > 0; apart /= 2) {
        FEDDAG_UNROLL for (int i = 0; i < C / 2; i++)
            interleave<T>(now[i], now[i + C / 2], next[2 * i], next[2 * i + 1]);
        FEDDAG_UNROLL for (int c = 0; c < C; c++) now[c] = next[c];
    }
    FEDDAG_UNROLL for (int c = 0; c < C; c++) store(pixels + c * L, now[c]);
}

// The same for `count` pixels of `stored` channels, of which C is no less than the real ones and less than twice those:
// whole pixels are written, and what is too much is overwritten by the next.
template <class T, int C> void write_pixels(const T* channels, T* y, int stored, int count) {
    T pixels[C * kLanes<T>];
    transpose<T, C>(channels, pixels);
    if (stored < C) count--;
    for (int i = 0; i < count; i++) std::memcpy(y + i * stored, pixels + i * C, C * sizeof(T));
    if (stored < C) std::memcpy(y + count * stored, pixels + count * C, stored * sizeof(T));
}

// For up to sixteen channels.
template <class T>
void turn_channels_last(const T* channels, int count_of_channels, T* y, int stored, int count) {
    static constexpr std::array write{write_pixels<T, 1>, write_pixels<T, 2>, write_pixels<T, 4>, write_pixels<T, 8>,
                                      write_pixels<T, 16>};
    int size = 0;
    while (1 << size < count_of_channels) size++;
    write[size](channels, y, stored, count);
}

}  // namespace feddag
