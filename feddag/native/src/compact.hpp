// Keeping only the elements that matter: the inner loop of listing winners.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>

#include <array>
#endif

#include "simd.hpp"

namespace feddag {

// Appends (number, gradient) of every i < count with from[i] == here and gradient[i] != 0; returns how many there were.
// Whole vectors are read and written: the arrays have surplus elements (where `from` is -1), the lists room.
template <class T>
int compact(const Index<T>* from, Index<T> here, const T* grad, int count, int* number, T* value) {
    int kept = 0;
    for (int i = 0; i < count; i++) {  // without branches: what is not kept is overwritten
        number[kept] = i;
        value[kept] = grad[i];
        kept += (from[i] == here) & (grad[i] != 0);
    }
    return kept;
}

// Appends the lanes of two vectors for which `keep` is set to two lists that have room for whole vectors.
template <class T>
int keep_lanes(Vec<Index<T>> keep, Vec<Index<T>> a, Vec<Index<T>> b, Index<T>* to_a, Index<T>* to_b) {
    int kept = 0;
    for (int i = 0; i < kLanes<T>; i++) {
        to_a[kept] = a[i];
        to_b[kept] = b[i];
        kept -= int(keep[i]);
    }
    return kept;
}

#if defined(__AVX512F__)
template <>
inline int keep_lanes<float>(Vec<std::int32_t> keep, Vec<std::int32_t> a, Vec<std::int32_t> b, std::int32_t* to_a,
                             std::int32_t* to_b) {
    const __mmask16 mask = _mm512_movepi32_mask(__m512i(keep));
    _mm512_storeu_si512(to_a, _mm512_maskz_compress_epi32(mask, __m512i(a)));
    _mm512_storeu_si512(to_b, _mm512_maskz_compress_epi32(mask, __m512i(b)));
    return __builtin_popcount(mask);
}

template <> inline int compact<float>(const std::int32_t* from, std::int32_t here, const float* grad, int count,
                                      int* number, float* value) {
    __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int kept = 0;
    for (int i = 0; i < count; i += 16, numbers = _mm512_add_epi32(numbers, _mm512_set1_epi32(16))) {
        const __m512 g = _mm512_loadu_ps(grad + i);
        const __mmask16 here_too = _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(from + i), _mm512_set1_epi32(here));
        const __mmask16 keep = _mm512_mask_cmp_ps_mask(here_too, g, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        _mm512_storeu_si512(number + kept, _mm512_maskz_compress_epi32(keep, numbers));
        _mm512_storeu_ps(value + kept, _mm512_maskz_compress_ps(keep, g));
        kept += __builtin_popcount(keep);
    }
    return kept;
}
#elif defined(__AVX2__)
// For every set of lanes of eight, where to take the kept lanes from.
inline const std::array<std::array<std::uint8_t, 8>, 256>& lanes_of() {
    static const auto table = [] {
        std::array<std::array<std::uint8_t, 8>, 256> t{};
        for (int set = 0; set < 256; set++)
            for (int lane = 0, n = 0; lane < 8; lane++)
                if (set >> lane & 1) t[set][n++] = std::uint8_t(lane);
        return t;
    }();
    return table;
}

template <>
inline int keep_lanes<float>(Vec<std::int32_t> keep, Vec<std::int32_t> a, Vec<std::int32_t> b, std::int32_t* to_a,
                             std::int32_t* to_b) {
    const int set = _mm256_movemask_ps(__m256(keep));
    const auto* from = reinterpret_cast<const __m128i*>(lanes_of()[set].data());
    const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_a), _mm256_permutevar8x32_epi32(__m256i(a), lanes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_b), _mm256_permutevar8x32_epi32(__m256i(b), lanes));
    return __builtin_popcount(set);
}

template <> inline int compact<float>(const std::int32_t* from, std::int32_t here, const float* grad, int count,
                                      int* number, float* value) {
    const auto& table = lanes_of();
    int kept = 0;
    for (int i = 0; i < count; i += 8) {
        const __m256 g = _mm256_loadu_ps(grad + i);
        const __m256i f = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
        const __m256 here_too = _mm256_castsi256_ps(_mm256_cmpeq_epi32(f, _mm256_set1_epi32(here)));
        const int keep =
            _mm256_movemask_ps(_mm256_and_ps(here_too, _mm256_cmp_ps(g, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
        const __m256i lanes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(table[keep].data())));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(number + kept), _mm256_add_epi32(lanes, _mm256_set1_epi32(i)));
        _mm256_storeu_ps(value + kept, _mm256_permutevar8x32_ps(g, lanes));
        kept += __builtin_popcount(keep);
    }
    return kept;
}
#endif

}  // namespace feddag
