// The lengths of the shortest paths between all nodes of a graph.
#include "program.h"

int path[5600][5600];

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            path[i][j] = (i + j) % 13 == 0 || (i + j) % 7 == 0 || (i + j) % 11 == 0 ? 999 : i * j % 7 + 1;
}

void EXPORT(run)(int n)
{
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                path[i][j] = path[i][j] < path[i][k] + path[k][j] ? path[i][j] : path[i][k] + path[k][j];
}
